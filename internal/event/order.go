package event

// order is the order in which an object's members came in the messages before.
// A program writes its messages in one order, so the next key is mostly known:
// then it is compared, not read. A guess that fails costs little, and makes the
// next one; what a message means does not depend on it.
type order struct {
	keys  []string // as they are written: "id":
	index func(key []byte) int
	after []int // the member that came after each one, and first of all at start
}

func newOrder(names []string, index func(key []byte) int) order {
	o := order{index: index, after: make([]int, len(names)+1)}
	for _, name := range names {
		o.keys = append(o.keys, `"`+name+`":`)
	}
	return o
}

// start stands for the member before the first.
func (o *order) start() int { return len(o.keys) }

// expect reads key i at p, if it is there, and gives back the place behind its
// colon, or else stopped.
func (o *order) expect(b []byte, p, i int) (key []byte, end int) {
	end = p + len(o.keys[i])
	if end > len(b) || string(b[p:end]) != o.keys[i] {
		return nil, stopped
	}
	return b[p+1 : end-2], end
}
