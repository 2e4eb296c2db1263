package executor

import (
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// An expired timer that a command on its way holds (a Cancel whose outcome is not known yet) is not looked at each millisecond.
func TestHeldAndExpiredRests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.schedule("a", &logv1.Extra{ExpiryMs: b.millis() + 5})
	b.settle()
	b.table.hold("a")
	turns := b.loop.turns
	for end := b.now.Add(time.Second); b.now.Before(end); {
		wait, calls := b.turn()
		if calls == 0 {
			b.pass(wait)
		}
	}
	if n := b.loop.turns - turns; n > 20 {
		t.Fatalf("%d turns in a second", n)
	}
	b.table.release("a")
	b.settle()
	if len(b.settled) != 1 || b.settled[0].GetExpire() == nil {
		t.Fatalf("proposed %v", b.settled)
	}
}
