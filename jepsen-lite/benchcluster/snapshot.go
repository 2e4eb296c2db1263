package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

const (
	// snapshotPending is how many timers are pending at most while snapshots are measured.
	snapshotPending = 300_000
	// snapshotEntries is about what a shard's log grows by while its node writes the snapshots of all: they follow each other.
	snapshotEntries = 1000
	// snapshotRounds is how many loads of each kind there are, in turn: their p99 differ by a third.
	snapshotRounds = 3
)

// snapshot is the second half of T12: the lateness of timers while snapshots are written against that without any. The nodes are
// started anew before each load, so that all find the same.
func (s *session) snapshot(ctx context.Context) error {
	pending := min(snapshotPending, s.pending)
	if _, err := s.bench(ctx, "schedule", "--callers", "8", "--batch", "500", "--count", fmt.Sprint(pending), "--duration", "2m", "--keep"); err != nil {
		return err
	}
	var quiet, busy snapshotLoads
	for range snapshotRounds {
		if err := s.latenessWith(ctx, 10_000_000, &quiet); err != nil {
			return err
		}
		if err := s.latenessWith(ctx, snapshotEntries, &busy); err != nil {
			return err
		}
	}
	if quiet.taken > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%v snapshots were written where there were to be none.", quiet.taken))
	}
	s.notes = append(s.notes, fmt.Sprintf("T12: p99 of each load without snapshots %.1f ms, with them %.1f ms.", quiet.p99, busy.p99))
	with := fmt.Sprintf("at 1k fires/s, %s pending", number(float64(pending)))
	s.add(
		row{Target: "T12", What: "lateness p99 " + with + ", no snapshots", Value: middle(quiet.p99), Unit: "ms"},
		row{Target: "T12", What: "the same while each node writes snapshots", Value: middle(busy.p99), Unit: "ms"},
		row{Target: "T12", What: "ratio", Value: middle(busy.p99) / middle(quiet.p99), Unit: "x", Goal: 1.5},
		row{Target: "T12", What: "snapshots written meanwhile", Value: busy.taken, More: true, Goal: float64(s.shards)},
		row{Target: "T12", What: "of the time in which one was being written, per node", Value: 100 * busy.share / snapshotRounds, Unit: "%", More: true},
		row{Target: "T12", What: "lost or early", Value: float64(quiet.wrong + busy.wrong), Zero: true},
	)
	return nil
}

// snapshotLoads is what came of the loads of one kind.
type snapshotLoads struct {
	p99   []float64 // of each
	wrong int64     // timers lost or early
	taken float64   // snapshots
	share float64   // of its time in which a node was writing a snapshot, summed over the loads
}

// middle is the median.
func middle(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// latenessWith starts the nodes with a threshold of entries and lets timers fire.
func (s *session) latenessWith(ctx context.Context, entries int, l *snapshotLoads) error {
	s.cluster.Stop()
	for _, n := range s.cluster.Nodes {
		n.Args = append(n.Args, "--snapshot-entries", fmt.Sprint(entries)) // the last one counts
	}
	if err := s.cluster.Start(); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.cluster.WaitReady(ready); err != nil {
		return err
	}
	if _, _, err := s.busiest(ctx); err != nil { // the leaderships are spread
		return err
	}
	fire := func(length time.Duration) (local.Report, error) {
		return s.bench(ctx, "fire", "--rate", "1000", "--ahead", "500ms", "--duration", length.String())
	}
	if _, err := fire(2 * time.Second); err != nil { // the first deliveries after a start are not what is measured
		return err
	}
	s.log("a snapshot each %d entries", entries)
	count, seconds, err := s.snapshots(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := fire(s.duration)
	if err != nil {
		return err
	}
	elapsed := time.Since(began).Seconds()
	counted, spent, err := s.snapshots(ctx)
	l.p99 = append(l.p99, r.Measure("lateness").P99)
	l.wrong += r.Fires.Lost + r.Fires.Early
	l.taken += counted - count
	l.share += (spent - seconds) / elapsed / float64(len(s.cluster.Nodes))
	return err
}

// snapshots are how many all nodes have taken since their start, and how long that took.
func (s *session) snapshots(ctx context.Context) (count, seconds float64, err error) {
	for _, n := range s.cluster.Nodes {
		page, err := fetch(ctx, "http://"+n.HTTP+"/metrics")
		if err != nil {
			return 0, 0, err
		}
		count += metrics(page, "carillon_shard_snapshots_total")
		seconds += metrics(page, "carillon_shard_snapshot_seconds_total")
	}
	return count, seconds, nil
}

// metrics sums the values of a metric over all its labels.
func metrics(page, name string) (sum float64) {
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name+"{")
		if !ok {
			continue
		}
		if _, text, ok := strings.Cut(rest, "} "); ok {
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				sum += v
			}
		}
	}
	return sum
}
