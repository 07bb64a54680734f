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
	slots  []uint32 // hash table: place in keys, plus one
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
	for slot = h >> 8 & mask; p.slots[slot] != 0; slot = (slot + 1) & mask {
		if at := int(p.slots[slot] - 1); p.keys[at] == k {
			return at, slot
		}
	}
	return -1, slot
}

func (p *part) add(k key, parent uint32) {
	if len(p.keys)*4 >= len(p.slots)*3 {
		p.slots = make([]uint32, max(64, 2*len(p.slots)))
		for i, k := range p.keys {
			_, slot := p.find(k, hash(k))
			p.slots[slot] = uint32(i + 1)
		}
	}
	place, slot := p.find(k, hash(k))
	if place >= 0 {
		return
	}
	if len(p.keys) >= 1<<partBits {
		panic("model: too many states")
	}
	p.keys, p.parent = append(p.keys, k), append(p.parent, parent)
	p.slots[slot] = uint32(len(p.keys))
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
	refused atomic.Bool
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
		s.part[i].slots = make([]uint32, 64)
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
			if s.expand(level[:n]) {
				s.result.States = s.count()
				s.result.Took = time.Since(start)
				return &s.result
			}
			level = level[n:]
		}
		if s.result.Stops == 0 && s.refused.Load() {
			s.result.Stops = depth + 1
		}
		from = to
	}
	s.result.States = s.count()
	if s.limit >= harmStuck {
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

// expand looks at the states and adds what they lead to. It reports whether one
// step was bad.
func (s *search) expand(level []uint32) bool {
	out := make([][parts][]found, s.workers)
	type wrong struct {
		from uint32
		l    label
		b    bad
	}
	bads := make([]*wrong, s.workers)
	var wg sync.WaitGroup
	for w := range s.workers {
		wg.Go(func() {
			mine := &out[w]
			for i := w; i < len(level); i += s.workers {
				number := level[i]
				st := unpack(s.key(number))
				s.m.next(&st, func(l label, n *state, b bad) {
					if b != fine && b <= s.limit && bads[w] == nil {
						bads[w] = &wrong{number, l, b}
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
				if bads[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, b := range bads {
		if b != nil {
			s.result.Bad = b.b
			s.result.Trace = s.trace(b.from, b.b)
			return true
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
	return false
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
