package main

import (
	"context"
	"fmt"
)

// growthFires is how many timers are fired at each size.
const growthFires = 50_000

// growth is T13: what scheduling and firing cost with few timers pending and with many.
func (s *session) growth(ctx context.Context) error {
	few := min(100_000, s.pending)
	cheap, err := s.cost(ctx, few, "few")
	if err != nil {
		return err
	}
	dear, err := s.cost(ctx, s.pending-few, "many")
	if err != nil {
		return err
	}
	sizes := fmt.Sprintf("with %s pending against %s", number(float64(s.pending)), number(float64(few)))
	s.add(
		row{Target: "T13", What: "processor time of the servers per schedule in batches, " + sizes, Value: dear.schedule / cheap.schedule, Unit: "x", Goal: 1.5, Stretch: 1.2},
		row{Target: "T13", What: "the same per fire with its ack", Value: dear.fire / cheap.fire, Unit: "x", Goal: 1.5, Stretch: 1.2},
		row{Target: "T13", What: "processor time per schedule with few", Value: cheap.schedule * 1e6, Unit: "µs"},
		row{Target: "T13", What: "processor time per fire with few", Value: cheap.fire * 1e6, Unit: "µs"},
	)
	return nil
}

// costs are seconds of processor time of all nodes together.
type costs struct{ schedule, fire float64 }

// cost adds pending timers and returns what the last of many schedules and fires cost then.
func (s *session) cost(ctx context.Context, more int, name string) (c costs, err error) {
	fill := []string{"schedule", "--callers", "8", "--batch", "500", "--duration", "5m", "--keep"}
	if rest := more - growthFires; rest > 0 {
		if _, err := s.bench(ctx, append(fill, "--count", fmt.Sprint(rest))...); err != nil {
			return c, err
		}
	}
	s.log("costs with %s", name)
	if c.schedule, err = s.spent(ctx, append(fill, "--count", fmt.Sprint(growthFires))...); err != nil {
		return c, err
	}
	c.fire, err = s.spent(ctx, "fire", "--drain", fmt.Sprint(growthFires), "--concurrency", "1000")
	c.fire -= c.schedule // a drain schedules first
	return c, err
}

// spent runs a load of growthFires timers and returns the processor time of the servers per timer.
func (s *session) spent(ctx context.Context, args ...string) (float64, error) {
	before, err := s.processorTime()
	if err != nil {
		return 0, err
	}
	if _, err := s.bench(ctx, args...); err != nil {
		return 0, err
	}
	after, err := s.processorTime()
	return (after - before) / growthFires, err
}

// processorTime is that of all nodes since their start, in seconds.
func (s *session) processorTime() (sum float64, err error) {
	for _, n := range s.cluster.Nodes {
		t, err := n.ProcessorTime()
		if err != nil {
			return 0, err
		}
		sum += t.Seconds()
	}
	return sum, nil
}
