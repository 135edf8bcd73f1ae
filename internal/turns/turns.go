// Package turns lets those who come at the same time go together: to a server that is far
// away, or has one thread, many questions in one call cost little more than one.
//
// Invariants: of one [Turns] one turn goes on at a time; who comes meanwhile is in the next,
// in the order in which they came; nobody waits for others to come. There is no goroutine but
// those of who comes: one of them takes the turn for all.
package turns

import (
	"errors"
	"sync"
)

// Turns are those of one thing. The zero value is ready; it is safe for concurrent use.
type Turns[T any] struct {
	mu      sync.Mutex
	waiting []*waiter[T]
	taken   bool // one goes on
}

type waiter[T any] struct {
	what T
	err  error
	// next says that its turn is over, or (true) that it is to take it.
	next chan bool
}

// errPanic is for those who were in a turn that panicked.
var errPanic = errors.New("who took the turn panicked")

// Go waits for a turn, has take do what is to be done for all who are in it, most of them at
// most, and returns its error. Which of them runs its take is not said: all must do the same,
// and it must end.
func (t *Turns[T]) Go(what T, most int, take func([]T) error) error {
	w := &waiter[T]{what: what, next: make(chan bool, 1)}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	takes := !t.taken
	t.taken = true
	t.mu.Unlock()
	if takes || <-w.next {
		t.take(most, take)
	}
	return w.err
}

// Waiting is how many wait for a turn that has not begun.
func (t *Turns[T]) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}

// take takes a turn, and hands on the next.
func (t *Turns[T]) take(most int, take func([]T) error) {
	t.mu.Lock()
	n := min(len(t.waiting), most)
	together := t.waiting[:n:n]
	t.waiting = t.waiting[n:]
	t.mu.Unlock()
	list := make([]T, n)
	for i, w := range together {
		list[i] = w.what
	}
	err := errPanic
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, w := range together {
			w.err = err
			w.next <- false
		}
		if t.taken = len(t.waiting) > 0; t.taken {
			t.waiting[0].next <- true
		}
	}()
	err = take(list)
}
