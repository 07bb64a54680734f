package aggregate

import "iter"

// Rows is a list in pieces. It grows without a copy, and a fresh epoch asks for
// no large piece of memory at its first record: a barrier is not to be felt.
// Adding moves nothing that is there but in the first, small piece.
type Rows[T any] struct {
	pieces [][]T // all but the last one are full
	n      int
}

// pieceRows is a piece's length: a few ten kilobytes of the largest rows. The
// first piece grows up to it, so that a small epoch takes little.
const pieceRows = 1 << pieceBits

const pieceBits = 6

// Len is the number of rows.
func (r *Rows[T]) Len() int { return r.n }

// At is row i.
func (r *Rows[T]) At(i int) *T { return &r.pieces[i>>pieceBits][i&(pieceRows-1)] }

// All are the rows in the order in which they were added.
func (r *Rows[T]) All() iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		i := 0
		for _, piece := range r.pieces {
			for k := range piece {
				if !yield(i, &piece[k]) {
					return
				}
				i++
			}
		}
	}
}

// Add appends a zero row, to be filled in. The pointer is good until the next one
// is added.
func (r *Rows[T]) Add() *T {
	last := len(r.pieces) - 1
	switch {
	case last < 0:
		r.pieces = append(r.pieces, make([]T, 0, 4))
		last = 0
	case len(r.pieces[last]) == pieceRows:
		r.pieces = append(r.pieces, make([]T, 0, pieceRows))
		last++
	case len(r.pieces[last]) == cap(r.pieces[last]):
		grown := make([]T, len(r.pieces[last]), min(4*cap(r.pieces[last]), pieceRows))
		copy(grown, r.pieces[last])
		r.pieces[last] = grown
	}
	piece := r.pieces[last]
	piece = piece[:len(piece)+1]
	r.pieces[last] = piece
	r.n++
	return &piece[len(piece)-1]
}
