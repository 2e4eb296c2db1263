package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	// probeAfter is how long an attempt is unanswered until its node is asked whether it is there, and again after each answer.
	probeAfter = 750 * time.Millisecond
	// probeTimeout is how long the answer may take. It comes from the node alone, whatever its shards wait for.
	probeTimeout = 750 * time.Millisecond
)

// errNoAnswer is why an attempt was ended early.
var errNoAnswer = &unavailableError{message: "the node does not answer", maybe: true, silent: true}

// bound is the context of one attempt at a node. It ends with AttemptTimeout, and before that if the node answers nothing any more: a
// process that is frozen, or a machine that is cut off, keeps its connections. end ends it, and says what the attempt came to.
func (c *Client) bound(parent context.Context, e *endpoint) (attempt context.Context, end func(error) error) {
	caused, give := context.WithCancelCause(parent)
	ctx, cancel := context.WithTimeout(caused, c.cfg.AttemptTimeout)
	timer := time.AfterFunc(probeAfter, func() { // ends with ctx
		for ctx.Err() == nil {
			if e.silent(ctx) {
				give(errNoAnswer)
				return
			}
			_ = sleep(ctx, probeAfter)
		}
	})
	return ctx, func(err error) error {
		timer.Stop()
		silent := context.Cause(ctx) == errNoAnswer
		cancel()
		give(nil)
		if err != nil && silent {
			return errNoAnswer
		}
		return errorOf(err)
	}
}

// silent says that the node did not answer in time. Any answer will do, but for one that its time was over.
func (e *endpoint) silent(ctx context.Context) bool {
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := healthv1.NewHealthClient(e.conn).Check(probe, &healthv1.HealthCheckRequest{})
	return status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil
}
