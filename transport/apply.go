package transport

import (
	"context"
	"errors"
	"fmt"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// This file brings commands to the backend and sees to it that each has an outcome.

func (s *Server) applyOne(ctx context.Context, cmd *raftfsm.Command) (raftfsm.Result, error) {
	outcome := s.apply(ctx, []*raftfsm.Command{cmd})[0]
	return outcome.Result, outcome.Err
}

// applyEach applies the commands that could be made, in their order; the others keep their own error.
func (s *Server) applyEach(ctx context.Context, n int, command func(i int) (*raftfsm.Command, error)) []Outcome {
	cmds := make([]*raftfsm.Command, 0, n)
	var refused []Outcome // only the errors; nil while there are none
	for i := range n {
		cmd, err := command(i)
		if err == nil {
			cmds = append(cmds, cmd)
			continue
		}
		if refused == nil {
			refused = make([]Outcome, n)
		}
		refused[i].Err = err
	}
	if len(cmds) == 0 {
		return refused
	}
	outcomes := s.apply(ctx, cmds)
	if refused == nil {
		return outcomes
	}
	for i := range refused {
		if refused[i].Err == nil {
			refused[i], outcomes = outcomes[0], outcomes[1:]
		}
	}
	return refused
}

// applyAll applies all commands, which are for one shard, or none: the error is that of the first that fails.
func (s *Server) applyAll(ctx context.Context, n int, command func(i int) (*raftfsm.Command, error)) ([]raftfsm.Result, error) {
	if n == 0 {
		return nil, nil
	}
	cmds := make([]*raftfsm.Command, n)
	for i := range n {
		var err error
		if cmds[i], err = command(i); err != nil {
			return nil, atItem(i, err)
		}
	}
	decoded(ctx)
	outcome := s.backend.Apply(ctx, []*raftfsm.Command{{Kind: &logv1.Command_Atomic{Atomic: &logv1.Atomic{Commands: cmds}}}})[0]
	if outcome.Err == nil && outcome.Code == raftfsm.OK {
		if len(outcome.Items) != n {
			panic(fmt.Sprintf("the backend answered %d of %d commands of an atomic batch", len(outcome.Items), n))
		}
		return outcome.Items, nil
	}
	if outcome.Code == raftfsm.OK || outcome.Code == raftfsm.StaleEpoch { // it did not come so far
		return nil, refusalOf(cmds[0], outcome)
	}
	item := min(int(outcome.Answer), n-1)
	return nil, atItem(item, refusalOf(cmds[item], outcome))
}

// apply asks the backend and makes sure of what it promises: an outcome for each command, an error for
// each refusal.
func (s *Server) apply(ctx context.Context, cmds []*raftfsm.Command) []Outcome {
	decoded(ctx)
	outcomes := s.backend.Apply(ctx, cmds)
	if len(outcomes) != len(cmds) {
		panic(fmt.Sprintf("the backend answered %d of %d commands", len(outcomes), len(cmds)))
	}
	for i := range outcomes {
		if o := &outcomes[i]; o.Err != nil || o.Code != raftfsm.OK {
			o.Err = refusalOf(cmds[i], *o)
		}
	}
	return outcomes
}

// refusalOf is the error of an outcome, nil if there is none. A shard answers with the actual revision alone; the one that
// the client expected is in the command.
func refusalOf(cmd *raftfsm.Command, o Outcome) error {
	err := o.Err
	if err == nil {
		err = shard.ErrOf(o.Result)
	}
	if revision, ok := errors.AsType[*shard.RevisionError](err); ok && revision.Expected == 0 {
		return &shard.RevisionError{Expected: expectedRevision(cmd), Actual: revision.Actual}
	}
	return err
}

func expectedRevision(cmd *raftfsm.Command) uint64 {
	switch kind := cmd.Kind.(type) {
	case *logv1.Command_Schedule:
		return kind.Schedule.ExpectedRevision
	case *logv1.Command_Cancel:
		return kind.Cancel.ExpectedRevision
	case *logv1.Command_Reschedule:
		return kind.Reschedule.ExpectedRevision
	case *logv1.Command_Pause:
		return kind.Pause.ExpectedRevision
	case *logv1.Command_Resume:
		return kind.Resume.ExpectedRevision
	}
	return 0
}

// overloadOf is the refusal of a batch all of whose items were refused because of overload, with the longest time to wait; it is
// answered once and not for each item.
func overloadOf(outcomes []Outcome) error {
	var longest *shard.OverloadedError
	for _, o := range outcomes {
		overload, ok := errors.AsType[*shard.OverloadedError](o.Err)
		if !ok {
			return nil
		}
		if longest == nil || overload.RetryAfter > longest.RetryAfter {
			longest = overload
		}
	}
	if longest == nil {
		return nil
	}
	return longest
}
