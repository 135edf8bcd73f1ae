package turns

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhoComesMeanwhileGoesTogether: the first goes alone and at once, those who come while it
// does in one turn, as far as there is room, in their order.
func TestWhoComesMeanwhileGoesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns Turns[int]
		var taken [][]int
		var going sync.WaitGroup
		for i := range 8 {
			going.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if err := turns.Go(i, 4, func(list []int) error {
					taken = append(taken, list)
					time.Sleep(time.Second)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		going.Wait()
		want := [][]int{{0}, {1, 2, 3, 4}, {5, 6, 7}}
		if !slices.EqualFunc(taken, want, slices.Equal) {
			t.Errorf("taken %v, want %v", taken, want)
		}
	})
}

// TestAnErrorIsOfTheTurn: all who were in it get it, and the next turn goes on.
func TestAnErrorIsOfTheTurn(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func() error
		want []int // who has an error
	}{
		{"an error", func() error { return errors.New("it went wrong") }, []int{1, 2}},
		{"a panic, of 1 who takes the turn", func() error { panic("it went wrong") }, []int{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var turns Turns[int]
				var failed []int
				var mu sync.Mutex
				var going sync.WaitGroup
				for i := range 4 {
					going.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						defer func() { _ = recover() }() // of who takes the turn
						err := turns.Go(i, 2, func(list []int) error {
							time.Sleep(time.Second)
							if slices.Contains(list, 2) {
								return c.fail()
							}
							return nil
						})
						if err != nil {
							mu.Lock()
							defer mu.Unlock()
							failed = append(failed, i)
						}
					})
				}
				going.Wait() // of them 1 and 2 go together
				if err := turns.Go(9, 2, func([]int) error { return nil }); err != nil {
					t.Error(err)
				}
				slices.Sort(failed)
				if !slices.Equal(failed, c.want) {
					t.Errorf("%v failed, want %v", failed, c.want)
				}
			})
		})
	}
}
