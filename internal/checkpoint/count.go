package checkpoint

import "sync"

// claims decides which process publishes the counts of an epoch. They are for
// metrics, nothing is built on them; but what two owners finish together should
// be counted once, and what a dead one has begun not be left out:
//
//   - C8 counts when it committed every shard's branch itself. Where a next
//     owner was faster on one, that one counts.
//   - A recovery (S4, or the sweep) counts when it committed a branch, for it
//     has then finished the epoch; or when C8 of this process had committed
//     them all and could not say so.
//   - A process counts an epoch once, also when its branch comes back prepared.
//
// An answer that was lost counts as ours. Not exact are only: a process that
// dies between its last commit and the counting, with its counters; answers that
// were lost while another owner was at work; and two recoveries of one epoch at
// the same time, of which one was frozen.
type claims struct {
	mu    sync.Mutex
	lanes map[Lane]*claim // the last epoch of each lane; owned by mu
}

type claim struct {
	gtrid     GTRID
	mine      map[int]bool // shards whose branch C8 of this process committed
	finishing bool         // a recovery of this process committed a branch
	counted   bool
}

// of is the lane's claim on the epoch, mu held.
func (c *claims) of(lane Lane, g GTRID) *claim {
	if c.lanes == nil {
		c.lanes = map[Lane]*claim{}
	}
	cl := c.lanes[lane]
	if cl == nil || cl.gtrid != g {
		cl = &claim{gtrid: g, mine: map[int]bool{}}
		c.lanes[lane] = cl
	}
	return cl
}

// committed notes that this process committed the epoch's branch on a shard.
func (c *claims) committed(lane Lane, g GTRID, shard int, recovery bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.of(lane, g)
	if recovery {
		cl.finishing = true
		return
	}
	cl.mine[shard] = true
}

// take reports whether the caller counts the epoch, which every one of so many
// shards shows: at most once for each epoch.
func (c *claims) take(lane Lane, g GTRID, shards int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.of(lane, g)
	if cl.counted || !cl.finishing && len(cl.mine) < shards {
		return false
	}
	cl.counted = true
	return true
}
