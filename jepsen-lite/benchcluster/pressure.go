package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-timers/carillon/jepsen-lite/local"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

const (
	// floodCallers each keep a call of floodBatch timers under way, and come back at once when it was refused: rude on
	// purpose. Together they have more under way than a shard lets wait.
	floodCallers = 160
	floodBatch   = 1000
	floodTime    = 6 * time.Second
	// floodAhead is how long before they fall due the timers are scheduled whose lateness is watched: before the flood.
	floodAhead = 12 * time.Second
	floodRate  = 500
	// floodMemory bounds what a node may grow by, beside what the accepted timers take: floodTimer each, the target of T11.
	floodMemory = 512 << 20
	floodTimer  = 280
)

// pressure drives one shard far past its limit.
func (s *session) pressure(ctx context.Context) error {
	shards := s.shards
	s.shards = 1
	defer func() { s.shards = shards }()
	if err := s.fresh(ctx, true); err != nil {
		return err
	}
	before, err := s.largest()
	if err != nil {
		return err
	}
	var watching sync.WaitGroup
	var watched local.Report
	var failed error
	watching.Go(func() {
		length := floodTime - 2*time.Second
		watched, failed = s.bench(ctx, "fire", "--rate", fmt.Sprint(floodRate), "--duration", length.String(), "--ahead", floodAhead.String())
	})
	err = local.Pause(ctx, floodAhead-time.Second)
	f, peak := &flood{id: fmt.Sprint("flood-", rand.Uint32(), "/")}, 0.0
	if err == nil {
		s.log("the flood")
		peak, err = s.drown(ctx, f)
	}
	watching.Wait()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if f.first != nil {
		s.notes = append(s.notes, "the flood: "+f.first.Error())
	}
	lateness := watched.Measure("lateness")
	s.log("%d accepted, %d refused; callers that listen", f.accepted.Load(), f.refused.Load())
	gentle, err := s.bench(ctx, "schedule", "--callers", "200", "--batch", "1000", "--count", "0", "--duration", s.duration.String(), "--keep")
	if err != nil {
		return err
	}
	grown, taken := peak-before, floodTimer*float64(f.accepted.Load())
	what := fmt.Sprintf("%d callers with batches of %d on one shard", floodCallers, floodBatch)
	s.add(
		row{Target: "flood", What: what + ": accepted", Value: float64(f.accepted.Load()) / floodTime.Seconds(), Unit: "/s", More: true},
		row{Target: "flood", What: "timers refused as RESOURCE_EXHAUSTED with a time to wait", Value: float64(f.refused.Load()), More: true, Goal: 1},
		row{Target: "flood", What: "refused as UNAVAILABLE, to be tried again", Value: float64(f.unavailable.Load())},
		row{Target: "flood", What: "refused otherwise", Value: float64(f.others.Load()), Zero: true},
		row{Target: "flood", What: "lateness p99 of timers accepted before, 500 a second, meanwhile", Value: lateness.P99, Unit: "ms", Goal: 250},
		row{Target: "flood", What: "of them lost or early", Value: float64(watched.Fires.Lost + watched.Fires.Early), Zero: true},
		row{Target: "flood", What: "memory of the largest node at its peak, grown by", Value: grown / (1 << 20), Unit: "MiB"},
		row{Target: "flood", What: fmt.Sprintf("the same beside %d B for each accepted timer", floodTimer), Value: (grown - taken) / (1 << 20), Unit: "MiB", Goal: floodMemory >> 20},
		row{Target: "flood", What: "200 callers of the SDK with batches of 1,000, which wait as they are told: accepted", Value: gentle.Measure("schedule").Rate, Unit: "/s", More: true},
		row{Target: "flood", What: "of them failed", Value: float64(gentle.Measure("schedule").Failed), Zero: true},
	)
	return nil
}

// largest is the resident memory of the node that has most, in bytes.
func (s *session) largest() (most float64, err error) {
	for _, n := range s.cluster.Nodes {
		rss, err := n.RSS()
		if err != nil {
			return 0, err
		}
		most = max(most, float64(rss))
	}
	return most, nil
}

// flood counts timers by what became of them.
type flood struct {
	id                  string
	next                atomic.Int64
	accepted, refused   atomic.Int64
	unavailable, others atomic.Int64
	mu                  sync.Mutex
	first               error // of the others; guarded by mu until all callers have ended
}

// drown floods all nodes and returns the peak of the memory.
func (s *session) drown(ctx context.Context, f *flood) (peak float64, err error) {
	// Without a deadline, which would travel to the nodes: they would end the last calls, and those would count as refused.
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	defer time.AfterFunc(floodTime, stop).Stop()
	var callers sync.WaitGroup
	for i := range floodCallers {
		conn, err := grpc.NewClient(s.cluster.Addrs()[i%len(s.cluster.Nodes)], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		callers.Go(func() { f.call(flooding, carillonv1.NewTimersClient(conn)) })
	}
	for flooding.Err() == nil {
		rss, err := s.largest()
		if err != nil {
			break // a node is gone: the callers tell
		}
		peak = max(peak, rss)
		_ = local.Pause(flooding, 100*time.Millisecond) // it ends with the flood
	}
	callers.Wait()
	return peak, ctx.Err()
}

// call sends batch after batch until the context ends.
func (f *flood) call(ctx context.Context, timers carillonv1.TimersClient) {
	payload := make([]byte, 100)
	for ctx.Err() == nil {
		request := &carillonv1.ScheduleBatchRequest{Items: make([]*carillonv1.ScheduleRequest, floodBatch)}
		for i := range request.Items {
			request.Items[i] = &carillonv1.ScheduleRequest{Timer: &carillonv1.Timer{
				Id: fmt.Sprint(f.id, f.next.Add(1)), When: &carillonv1.Timer_Delay{Delay: durationpb.New(time.Hour)},
				Target: &carillonv1.Timer_Queue{Queue: "flood"}, Payload: payload,
			}}
		}
		response, err := timers.ScheduleBatch(ctx, request)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.count(hinted(err), floodBatch, err)
			continue
		}
		for _, r := range response.Results {
			if item := r.GetError(); item != nil {
				f.count(item.Code == int32(codes.ResourceExhausted) && item.Metadata["retry_after_ms"] != "", 1,
					status.Error(codes.Code(item.Code), item.Message))
			} else {
				f.accepted.Add(1)
			}
		}
	}
}

// hinted says whether an error is RESOURCE_EXHAUSTED and says when to come back.
func hinted(err error) bool {
	st := status.Convert(err)
	for _, detail := range st.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok && st.Code() == codes.ResourceExhausted {
			return retry.RetryDelay.AsDuration() > 0
		}
	}
	return false
}

func (f *flood) count(refused bool, n int64, err error) {
	switch {
	case refused:
		f.refused.Add(n)
		return
	case status.Code(err) == codes.Unavailable:
		f.unavailable.Add(n)
		return
	}
	f.others.Add(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		f.first = err
	}
}
