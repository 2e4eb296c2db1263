package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

const (
	// growthTimers is how many timers are scheduled, or fired, in one measure of a cost, growthTimes how often each is measured: the
	// median counts, since one measure differs from the next by a fifth.
	growthTimers = 60_000
	growthTimes  = 3
	// calmShare is how much of one processor the servers may take together, above what they take with nothing to do, as a measure
	// begins; calmTime is how long that is waited for: the snapshots that a fill leaves behind are written at a bounded rate.
	calmShare = 0.15
	calmTime  = 2 * time.Minute
)

// growth is T13: what scheduling and firing cost with few timers pending and with many, both measured in the same way.
func (s *session) growth(ctx context.Context) error {
	few := min(100_000, s.pending)
	const half = growthTimers * growthTimes / 2 // so that the number is right in the middle of the measures
	idle, _, err := s.second(ctx)
	if err != nil {
		return err
	}
	cheap, err := s.cost(ctx, few-half, idle, "few")
	if err != nil {
		return err
	}
	rest := s.pending - few - 2*half
	before, err := s.processorTime()
	if err != nil {
		return err
	}
	dear, err := s.cost(ctx, rest, idle, "many")
	if err != nil {
		return err
	}
	many := number(float64(s.pending))
	sizes := fmt.Sprintf("with %s pending against %s", many, number(float64(few)))
	s.add(
		row{Target: "T13", What: "processor time of the servers per schedule in batches, " + sizes, Value: dear.schedule / cheap.schedule, Unit: "x", Goal: 1.5, Stretch: 1.2},
		row{Target: "T13", What: "the same per fire with its ack", Value: dear.fire / cheap.fire, Unit: "x", Goal: 1.5, Stretch: 1.2},
		row{Target: "T13", What: "processor time per schedule with few", Value: cheap.schedule * 1e6, Unit: "µs"},
		row{Target: "T13", What: "with " + many, Value: dear.schedule * 1e6, Unit: "µs"},
		row{Target: "T13", What: "the mean from few to many, with the snapshots and collections meanwhile", Value: (dear.filled - before) / float64(rest) * 1e6, Unit: "µs"},
		row{Target: "T13", What: "processor time per fire with few", Value: cheap.fire * 1e6, Unit: "µs"},
		row{Target: "T13", What: "with " + many, Value: dear.fire * 1e6, Unit: "µs"},
	)
	return nil
}

// costs are seconds of processor time of all nodes together: of one schedule, of one fire, of each second before the measures (which
// is taken off), and since the start as the measures begin.
type costs struct{ schedule, fire, beside, filled float64 }

// cost adds pending timers and returns what schedules and fires cost then. Rest is what the servers take with nothing to do.
func (s *session) cost(ctx context.Context, more int, rest float64, name string) (costs, error) {
	schedule := func(count int) []string {
		return []string{
			"schedule", "--callers", "8", "--batch", "500", "--keep", "--count", fmt.Sprint(count), "--duration", fillTime(count),
		}
	}
	if more > 0 {
		if _, err := s.bench(ctx, schedule(more)...); err != nil {
			return costs{}, err
		}
	}
	c := costs{}
	var err error
	if c.beside, c.filled, err = s.calm(ctx, rest); err != nil {
		return c, err
	}
	s.log("costs with %s; the servers take %.2f of a processor beside", name, c.beside)
	var schedules, fires []float64
	for range growthTimes {
		one, err := s.spent(ctx, c.beside, schedule(growthTimers)...)
		if err != nil {
			return costs{}, err
		}
		both, err := s.spent(ctx, c.beside, "fire", "--drain", fmt.Sprint(growthTimers), "--concurrency", "1000") // a drain schedules first
		if err != nil {
			return costs{}, err
		}
		s.log("%.1f µs per schedule, %.1f with the fire", one*1e6, both*1e6)
		schedules, fires = append(schedules, one), append(fires, both-one)
	}
	c.schedule, c.fire = median(schedules), median(fires)
	return c, nil
}

// second is the processor time that the servers take in one second, and that which they have taken since their start.
func (s *session) second(ctx context.Context) (in, all float64, err error) {
	before, err := s.processorTime()
	if err == nil {
		err = local.Pause(ctx, time.Second)
	}
	if err == nil {
		all, err = s.processorTime()
	}
	return all - before, all, err
}

// calm waits until the servers take no more than in rest, and returns what they take then, and have taken since their start.
func (s *session) calm(ctx context.Context, rest float64) (in, all float64, err error) {
	for began := time.Now(); ; {
		in, all, err = s.second(ctx)
		if err != nil || in < rest+calmShare {
			return in, all, err
		}
		if time.Since(began) > calmTime {
			s.notes = append(s.notes, fmt.Sprintf("The servers took %.2f of a processor before a measure of costs, %.2f in rest.", in, rest))
			return in, all, nil
		}
	}
}

// median is the middle of an odd number of values, which it sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// spent runs a load of growthTimers timers and returns the processor time of the servers per timer, without what they took beside.
func (s *session) spent(ctx context.Context, beside float64, args ...string) (float64, error) {
	began := time.Now()
	before, err := s.processorTime()
	if err != nil {
		return 0, err
	}
	if _, err := s.bench(ctx, args...); err != nil {
		return 0, err
	}
	after, err := s.processorTime()
	return (after - before - beside*time.Since(began).Seconds()) / growthTimers, err
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
