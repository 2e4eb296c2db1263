package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// settleTime is how long the servers have after the load until their memory is read: time to give back what only the load needed.
const settleTime = 30 * time.Second

// fillRate is the least rate at which timers are expected to be scheduled in batches; it bounds how long that may take.
const fillRate = 20_000

// fillTime is how long so many timers may take, in the form of a flag.
func fillTime(timers int) string {
	return (time.Minute + time.Duration(timers/fillRate)*time.Second).String()
}

// memory is T11: what a pending timer takes on each node, and how fast a cluster with many of them is back.
func (s *session) memory(ctx context.Context) error {
	before, err := s.weigh(ctx)
	if err != nil {
		return err
	}
	r, err := s.bench(ctx, "schedule", "--callers", "8", "--batch", "500", "--count", fmt.Sprint(s.pending), "--duration", fillTime(s.pending), "--keep")
	if err != nil {
		return err
	}
	count := float64(r.Measure("schedule").Count)
	if count == 0 {
		return errors.New("no timer was scheduled")
	}
	s.log("%s timers are pending", number(count))
	loaded, err := s.resident()
	if err != nil {
		return err
	}
	if err := local.Pause(ctx, settleTime); err != nil {
		return err
	}
	after, err := s.weigh(ctx)
	if err != nil {
		return err
	}
	timers := number(count) + " pending"
	s.add(
		row{Target: "T5", What: "schedules while the memory fills", Value: r.Measure("schedule").Rate, Unit: "/s", More: true},
		row{Target: "T11", What: "memory of a node (RSS grown) for each of " + timers, Value: (after.rss - before.rss) / count, Unit: "B", Goal: 280, Stretch: 200},
		row{Target: "T11", What: "the same as the load ends", Value: (loaded - before.rss) / count, Unit: "B"},
		row{Target: "T11", What: "share of the servers' processor time that their collectors took", Value: 100 * after.collector / after.processor, Unit: "%"},
		row{Target: "T11", What: "of that heap in use, after a GC", Value: (after.heap - before.heap) / count, Unit: "B"},
		row{Target: "T11", What: "disk of a node for each of " + timers, Value: (after.disk - before.disk) / count, Unit: "B"},
	)
	return s.restart(ctx, timers)
}

// weight is what a node takes, the mean of all: bytes, and seconds of processor time since its start.
type weight struct{ rss, heap, disk, collector, processor float64 }

// resident is the mean RSS of the nodes.
func (s *session) resident() (sum float64, err error) {
	for _, n := range s.cluster.Nodes {
		rss, err := n.RSS()
		if err != nil {
			return 0, err
		}
		sum += float64(rss)
	}
	return sum / float64(len(s.cluster.Nodes)), nil
}

func (s *session) weigh(ctx context.Context) (weight, error) {
	var w weight
	for _, n := range s.cluster.Nodes {
		heap, err := fetch(ctx, "http://"+n.HTTP+"/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			return w, err
		}
		metrics, err := fetch(ctx, "http://"+n.HTTP+"/metrics")
		if err != nil {
			return w, err
		}
		uptime := float64(time.Now().UnixNano())/1e9 - metric(metrics, "process_start_time_seconds")
		w.collector += metric(heap, "# GCCPUFraction =") * uptime * float64(runtime.NumCPU())
		w.processor += metric(metrics, "process_cpu_seconds_total")
		w.heap += metric(metrics, "go_memstats_heap_alloc_bytes")
		w.disk += folderBytes(filepath.Join(filepath.Dir(n.Log), n.Name))
	}
	nodes := float64(len(s.cluster.Nodes))
	rss, err := s.resident()
	return weight{rss, w.heap / nodes, w.disk / nodes, w.collector, w.processor}, err
}

// fetch reads a page of a node.
func fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(body), err
}

// metric finds a value without labels in a page of metrics; 0 if it is not there.
func metric(page, name string) float64 {
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err == nil {
				return v
			}
		}
	}
	return 0
}

// folderBytes sums up the files; those that vanish meanwhile count nothing.
func folderBytes(dir string) (sum float64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += float64(info.Size())
		}
		return nil
	})
	return sum
}

// restart kills all nodes, starts them again and waits for the first fire. Timers that fall due all the time are among
// the pending ones.
func (s *session) restart(ctx context.Context, timers string) error {
	const queue = "benchcluster-restart"
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := s.trickle(ctx, queue); err != nil {
		return err
	}
	s.log("kill -9 of all nodes")
	s.cluster.Kill()
	began := time.Now()
	if err := s.cluster.Start(); err != nil {
		return err
	}
	first, err := s.firstFire(ctx, queue)
	if err != nil {
		return err
	}
	s.log("the first fire")
	if err := s.cluster.WaitReady(ctx); err != nil {
		return err
	}
	s.add(
		row{Target: "T11", What: "start after kill -9 of all with " + timers + ", to the first fire", Value: first.Sub(began).Seconds(), Unit: "s", Goal: 4, Stretch: 1.5},
		row{Target: "T11", What: "the same, to all nodes ready", Value: time.Since(began).Seconds(), Unit: "s"},
	)
	return nil
}

// trickle schedules timers that fall due every 50 ms over the next minute.
func (s *session) trickle(ctx context.Context, queue string) error {
	c, err := client.Dial(ctx, client.Config{Addrs: s.cluster.Addrs()})
	if err != nil {
		return err
	}
	defer c.Close()
	var list []client.Timer
	for i := range 1200 {
		list = append(list, client.Timer{ID: fmt.Sprintf("%s/%d", queue, i), After: time.Duration(i) * 50 * time.Millisecond, Queue: queue})
	}
	_, err = c.ScheduleBatch(ctx, list)
	return err
}

// firstFire connects, works the queue and returns when the first delivery began to be handled.
func (s *session) firstFire(ctx context.Context, queue string) (time.Time, error) {
	c, err := client.Dial(ctx, client.Config{Addrs: s.cluster.Addrs()})
	if err != nil {
		return time.Time{}, err
	}
	defer c.Close()
	working, stop := context.WithCancel(ctx)
	defer stop()
	arrived := make(chan time.Time, 1)
	err = c.Work(working, queue, func(context.Context, client.Delivery) error {
		select {
		case arrived <- time.Now():
		default: // only the first counts
		}
		stop()
		return nil
	}, client.WorkOptions{DrainTimeout: 5 * time.Second})
	if err != nil {
		return time.Time{}, err
	}
	select {
	case t := <-arrived:
		return t, nil
	default:
		return time.Time{}, errors.Join(errors.New("no timer fired"), ctx.Err())
	}
}
