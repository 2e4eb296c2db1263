package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/shard"
)

// check verifies what the desk has let in against its sums.
func (d *desk) check(t *testing.T, inside ...*visit) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	items, bytes, waiting := 0, 0, 0
	for _, v := range inside {
		if v.inside {
			items, bytes = items+v.items, bytes+v.bytes
		}
	}
	for _, v := range d.line {
		waiting += v.bytes
	}
	if items != d.items || bytes != d.bytes || waiting != d.waiting {
		t.Fatalf("%d items, %d and %d bytes; want %d, %d and %d", d.items, d.bytes, d.waiting, items, bytes, waiting)
	}
}

// Batches are let in in the order in which they came, no more of them at a time than the limits allow, and one that is
// larger than the limit alone.
func TestDeskOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Now)
		d.turns = 1
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		visits := make([]*visit, 6)
		for i, items := range []int{deskItems / 2, deskItems / 2, 1, deskItems * 2, 1, 1} {
			all.Go(func() {
				v, err := d.enter(t.Context(), nil, items, 100)
				if err != nil {
					t.Error(i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				visits[i], order = v, append(order, i)
			})
			synctest.Wait()
		}
		here := func(want ...int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(order, want) {
				t.Fatalf("let in: %v, want %v", order, want)
			}
			d.check(t, slices.DeleteFunc(slices.Clone(visits), func(v *visit) bool { return v == nil })...)
		}
		here(0) // the second has no turn
		visits[0].endTurn()
		visits[0].endTurn()
		here(0, 1)
		visits[1].endTurn()
		here(0, 1) // the third does not fit
		visits[0].leave()
		visits[0].leave()
		here(0, 1, 2)
		visits[2].leave()
		here(0, 1, 2) // the fourth waits for all to leave, and nobody passes it
		visits[1].leave()
		here(0, 1, 2, 3)
		visits[3].endTurn()
		here(0, 1, 2, 3)
		visits[3].leave() // with a turn that has ended
		here(0, 1, 2, 3, 4)
		visits[4].leave() // with its turn
		here(0, 1, 2, 3, 4, 5)
		visits[5].leave()
		all.Wait()
		if d.items != 0 || d.bytes != 0 || d.turns != 1 {
			t.Errorf("left behind: %d items, %d bytes, %d turns", d.items, d.bytes, d.turns)
		}
	})
}

// A batch waits for a second at most, and for half of its caller's time; then it is refused, and who stood behind it goes on.
func TestDeskRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Now)
		d.turns = 3
		first, err := d.enter(t.Context(), nil, deskItems, 1)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		began := time.Now()
		refused := func(ctx context.Context, what string, after, retry time.Duration) {
			all.Go(func() {
				_, err := d.enter(ctx, nil, deskItems, 1)
				var overload *shard.OverloadedError
				if !errors.As(err, &overload) || overload.RetryAfter != retry || time.Since(began) != after {
					t.Errorf("%s: %v after %v", what, err, time.Since(began))
				}
			})
			synctest.Wait()
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		refused(hurried, "half of the caller's time", time.Second/2, firstRetry)
		gone, leave := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := d.enter(gone, nil, deskItems, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("who has gone: %v", err)
			}
		})
		stop := make(chan struct{})
		all.Go(func() {
			if _, err := d.enter(t.Context(), stop, deskItems, 1); !errors.Is(err, errStopping) {
				t.Errorf("at the stop: %v", err)
			}
		})
		synctest.Wait()
		leave()
		close(stop)
		refused(t.Context(), "a second", deskWait, time.Second/2)
		all.Wait()
		d.check(t, first)
		// One that is too large in front of a small one: when it gives up, the small one is let in.
		first.leave()
		half, err := d.enter(t.Context(), nil, deskItems/2, 1)
		if err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		all.Go(func() { _, _ = d.enter(t.Context(), nil, deskItems, 1) })
		time.Sleep(deskWait / 2)
		all.Go(func() {
			small, err := d.enter(t.Context(), nil, 1, 1)
			if err != nil || time.Since(began) != deskWait {
				t.Errorf("the small one: %v after %v", err, time.Since(began))
				return
			}
			d.check(t, half, small)
		})
		all.Wait()
	})
}

// What waits as it came is bounded, too: beyond that a batch is refused at once.
func TestDeskBoundsWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Now)
		first, err := d.enter(t.Context(), nil, deskItems, 3*waitingBytes)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if v, err := d.enter(t.Context(), nil, 1, waitingBytes/2); err == nil {
					v.leave()
				} else {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if _, err := d.enter(t.Context(), nil, 1, 1); err == nil || time.Since(began) != 0 {
			t.Errorf("one more: %v after %v", err, time.Since(began))
		}
		first.leave()
		all.Wait()
		d.check(t)
	})
}

// The longer an overload lasts, the longer is the time that callers are told to wait; when it is over it begins anew.
func TestRetryGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Now)
		hint := func() time.Duration {
			d.mu.Lock()
			defer d.mu.Unlock()
			var overload *shard.OverloadedError
			if err := d.refuse("x"); !errors.As(err, &overload) {
				t.Fatal(err)
			}
			return overload.RetryAfter
		}
		var got []string
		for _, pause := range []time.Duration{0, 100 * time.Millisecond, 900 * time.Millisecond, time.Second, time.Second, calmTime, calmTime + 1} {
			time.Sleep(pause)
			got = append(got, fmt.Sprint(hint()))
		}
		if want := []string{"250ms", "250ms", "1s", "2s", "2s", "2s", "250ms"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
