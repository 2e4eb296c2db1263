package transport

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// deliveries serves carillon.v1.Deliveries.
type deliveries struct {
	carillonv1.UnimplementedDeliveriesServer
	server *Server
}

func (d *deliveries) Work(stream grpc.BidiStreamingServer[carillonv1.WorkRequest, carillonv1.WorkResponse]) error {
	c := &d.server.counts
	defer c.workers.Add(-1)
	if limit := d.server.config.MaxWorkers; c.workers.Add(1) > int64(limit) {
		c.refusedWorkers.Add(1)
		return &shard.OverloadedError{Limit: fmt.Sprintf("%d Work streams of a node", limit), RetryAfter: HeartbeatLimit}
	}
	return newWork(d.server, stream).run()
}

func (d *deliveries) Ack(ctx context.Context, r *carillonv1.AckRequest) (*carillonv1.SettleResponse, error) {
	if err := checkAck(r); err != nil {
		return nil, err
	}
	answers := make([]answer, len(r.Tokens))
	for i, b := range r.Tokens {
		token, err := checkToken(fmt.Sprintf("tokens[%d]", i), b)
		if err != nil {
			return nil, err
		}
		answers[i] = answer{token: b, command: completeCommand(token)}
	}
	return &carillonv1.SettleResponse{Settled: d.server.settle(ctx, answers)}, nil
}

func (d *deliveries) Nack(ctx context.Context, r *carillonv1.NackRequest) (*carillonv1.SettleResponse, error) {
	if err := checkNack(r); err != nil {
		return nil, err
	}
	answers := make([]answer, len(r.Nacks))
	for i, n := range r.Nacks {
		token, err := checkToken(fmt.Sprintf("nacks[%d].token", i), n.Token)
		if err != nil {
			return nil, err
		}
		cmd, err := nackCommand(token, n)
		if err != nil {
			return nil, err
		}
		answers[i] = answer{token: n.Token, command: cmd}
	}
	return &carillonv1.SettleResponse{Settled: d.server.settle(ctx, answers)}, nil
}

// answer is an ack or a nack on its way. Without a command the token was none of ours: it is stale.
type answer struct {
	token   []byte
	command *raftfsm.Command // nil for a token that is none of ours
	lane    uint32           // that of its shard; what has no command goes with lane 0
}

// settle applies the answers and says in their order what became of them.
func (s *Server) settle(ctx context.Context, answers []answer) []*carillonv1.Settled {
	outcomes := s.applyEach(ctx, len(answers), func(i int) (*raftfsm.Command, error) {
		if answers[i].command == nil {
			return nil, shard.ErrStaleToken
		}
		return answers[i].command, nil
	})
	slab := make([]carillonv1.Settled, len(answers))
	settled := make([]*carillonv1.Settled, len(answers))
	for i, o := range outcomes {
		outcome := settleOutcome(o.Err)
		switch outcome {
		case carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE:
			s.counts.done.Add(1)
		case carillonv1.SettleOutcome_SETTLE_OUTCOME_STALE:
			s.counts.stale.Add(1)
		default:
			s.counts.failed.Add(1)
		}
		settled[i] = &slab[i]
		settled[i].Token, settled[i].Outcome = answers[i].token, outcome
	}
	return settled
}

// settleOutcome says what an error means for an answer: one that the shard refused will never count, all others may be
// sent again.
func settleOutcome(err error) carillonv1.SettleOutcome {
	if err == nil {
		return carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE
	}
	var invalid *shard.InvalidError
	switch {
	case errors.Is(err, shard.ErrStaleToken), errors.Is(err, shard.ErrNotFound), errors.As(err, &invalid):
		return carillonv1.SettleOutcome_SETTLE_OUTCOME_STALE
	}
	return carillonv1.SettleOutcome_SETTLE_OUTCOME_FAILED
}
