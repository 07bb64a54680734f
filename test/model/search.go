package model

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Result is what a search found.
type Result struct {
	States int
	Depth  int // of the last new state
	Took   time.Duration
	Bad    bad
	Taken  [steps]bool
	Trace  []string // from the start to what is bad, the shortest there is
	Stops  int      // steps to the first lane that stops for nothing, where that is not Bad
}

// Trace is one line a step.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, after %d steps:\n", r.Bad, len(r.Trace))
	for i, l := range r.Trace {
		fmt.Fprintf(&b, "%3d  %s\n", i+1, l)
	}
	return b.String()
}

// The states are kept in parts by their hash, so that all processors may add to
// them at once, each to a part of its own.
const (
	parts    = 64
	partBits = 26 // of a state's number: its place in its part
)

type part struct {
	keys   []key    // in the order in which they were found
	parent []uint32 // the number of the state that each was found from
	slots  []uint64 // hash table: half of the hash, and the place in keys plus one
}

func hash(k key) uint64 {
	h := k[0]*0x9e3779b97f4a7c15 ^ k[1]*0xc2b2ae3d27d4eb4f
	h ^= h >> 29
	h *= 0x165667b19e3779f9
	return h ^ h>>32
}

// find gives the place of a state, or -1 and the free slot for it.
func (p *part) find(k key, h uint64) (place int, slot uint64) {
	mask := uint64(len(p.slots) - 1)
	for slot = h >> 8 & mask; ; slot = (slot + 1) & mask {
		switch has := p.slots[slot]; {
		case has == 0:
			return -1, slot
		case has>>32 == h>>32 && p.keys[uint32(has)-1] == k:
			return int(uint32(has) - 1), slot
		}
	}
}

func (p *part) add(k key, parent uint32) {
	if len(p.keys)*4 >= len(p.slots)*3 {
		p.slots = make([]uint64, max(64, 2*len(p.slots)))
		for i, k := range p.keys {
			h := hash(k)
			_, slot := p.find(k, h)
			p.slots[slot] = h>>32<<32 | uint64(i+1)
		}
	}
	h := hash(k)
	place, slot := p.find(k, h)
	if place >= 0 {
		return
	}
	if len(p.keys) >= 1<<partBits {
		panic("model: too many states")
	}
	p.keys, p.parent = append(p.keys, k), append(p.parent, parent)
	p.slots[slot] = h>>32<<32 | uint64(len(p.keys))
}

type found struct {
	k      key
	parent uint32
}

type search struct {
	m       *Model
	limit   bad // what is larger is not looked at
	part    [parts]part
	result  Result
	workers int
	worst   wrong
	refused atomic.Bool // a lane stopped for nothing
}

// round is how many states are looked at before what they led to is added: a
// bound on memory.
const round = 1 << 17

// Search visits every state that can be reached, breadth first, until one is bad
// in a way up to limit. Then it follows a healthy owner from each of them.
func (m *Model) Search(limit bad) *Result {
	start := time.Now()
	s := &search{m: m, limit: limit, workers: runtime.GOMAXPROCS(0)}
	for i := range s.part {
		s.part[i].slots = make([]uint64, 64)
	}
	first, _ := m.canonical(state{})
	at := hash(first) % parts
	s.part[at].add(first, 0)

	var from [parts]int // where the level begins
	for depth := 0; ; depth++ {
		var to [parts]int
		var level []uint32
		for i := range s.part {
			to[i] = len(s.part[i].keys)
			for j := from[i]; j < to[i]; j++ {
				level = append(level, uint32(i)<<partBits|uint32(j))
			}
		}
		if len(level) == 0 {
			break
		}
		s.result.Depth = depth
		for len(level) > 0 {
			n := min(round, len(level))
			s.expand(level[:n])
			level = level[n:]
		}
		if b := s.worst.b; b != fine {
			s.result.Bad, s.result.Trace = b, s.trace(s.worst.from, b)
			break
		}
		if s.result.Stops == 0 && s.refused.Load() {
			s.result.Stops = depth + 1
		}
		from = to
	}
	s.result.States = s.count()
	if s.result.Bad == fine && s.limit >= harmStuck {
		s.follow()
	}
	s.result.Took = time.Since(start)
	return &s.result
}

func (s *search) count() (n int) {
	for i := range s.part {
		n += len(s.part[i].keys)
	}
	return n
}

// wrong is a step that is bad, and the state that it is taken from.
type wrong struct {
	from uint32
	b    bad
}

// worse keeps the worst step of a level: all of them are as near to the start.
func (w *wrong) worse(b bad, from uint32) {
	if b != fine && (w.b == fine || b < w.b) {
		*w = wrong{from, b}
	}
}

// expand looks at the states and adds what they lead to.
func (s *search) expand(level []uint32) {
	out := make([][parts][]found, s.workers)
	worst := make([]wrong, s.workers)
	taken := make([][steps]bool, s.workers)
	var wg sync.WaitGroup
	for w := range s.workers {
		wg.Go(func() {
			mine := &out[w]
			for i := w; i < len(level); i += s.workers {
				number := level[i]
				st := unpack(s.key(number))
				s.m.next(&st, func(l label, n *state, b bad) {
					taken[w][l.step] = true
					if b <= s.limit {
						worst[w].worse(b, number)
					}
					if b == harmRefused {
						s.refused.Store(true)
					}
					k, _ := s.m.canonical(*n)
					h := hash(k)
					p := h % parts
					if at, _ := s.part[p].find(k, h); at < 0 {
						mine[p] = append(mine[p], found{k, number})
					}
				})
			}
		})
	}
	wg.Wait()
	for w := range s.workers {
		s.worst.worse(worst[w].b, worst[w].from)
		for st := range taken[w] {
			s.result.Taken[st] = s.result.Taken[st] || taken[w][st]
		}
	}
	for w := range s.workers {
		wg.Go(func() {
			for p := w; p < parts; p += s.workers {
				for from := range out {
					for _, f := range out[from][p] {
						s.part[p].add(f.k, f.parent)
					}
				}
			}
		})
	}
	wg.Wait()
}

func (s *search) key(number uint32) key {
	return s.part[number>>partBits].keys[number&(1<<partBits-1)]
}

// trace is how the state is reached, told with the names that owners,
// incarnations and shards had on the way, and the bad step from it.
func (s *search) trace(number uint32, b bad) []string {
	path := []key{s.key(number)}
	for path[len(path)-1] != (key{}) { // the start
		number = s.part[number>>partBits].parent[number&(1<<partBits-1)]
		path = append(path, s.key(number))
	}
	var lines []string
	var at state
	for i := len(path) - 2; i >= 0; i-- {
		next, told := at, false
		s.m.next(&at, func(l label, n *state, _ bad) {
			if k, _ := s.m.canonical(*n); !told && k == path[i] {
				next, told = *n, true
				lines = append(lines, l.String())
			}
		})
		if !told {
			panic("model: the trace has no such step")
		}
		at = next
	}
	told := b == fine
	s.m.next(&at, func(l label, _ *state, is bad) {
		if !told && is == b {
			told = true
			lines = append(lines, l.String())
		}
	})
	return lines
}
