package checkpoint

import "fmt"

// InvariantError is a broken invariant of the protocol: a bug, or a store that
// did what it promised not to do. The lane stops; nothing is guessed.
type InvariantError struct{ What string }

func (e *InvariantError) Error() string { return "invariant broken: " + e.What }

// assert panics with an *InvariantError unless ok. The session's entry points
// turn that panic into an error that stops the lane, with nothing sent that
// was not sent before.
func assert(ok bool, format string, args ...any) {
	if !ok {
		panic(&InvariantError{What: fmt.Sprintf(format, args...)})
	}
}

// guard turns an assert's panic into *err.
func guard(err *error) {
	switch p := recover().(type) {
	case nil:
	case *InvariantError:
		*err = p
	default:
		panic(p)
	}
}
