package shard

import (
	"testing"
	"time"
)

// The wait is told to the millisecond: "1.577543544s" made each refusal of a flood a message of its own.
func TestOverloadedErrorText(t *testing.T) {
	t.Parallel()
	err := &OverloadedError{Limit: "8 calls", RetryAfter: 1_577_543_544 * time.Nanosecond}
	if got, want := err.Error(), "limit reached: 8 calls; retry after 1.578s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
