package node

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"

	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport"
)

// metrics reads the figures of all parts when it is scraped; nothing is counted twice on the way.
type metrics struct {
	n        *Node
	registry *prometheus.Registry
	descs    map[string]*prometheus.Desc // by name; set before sharing
}

// newMetrics makes a registry of the node's own: two nodes in one process do not mix.
func newMetrics(n *Node) *metrics {
	m := &metrics{n: n, registry: prometheus.NewRegistry(), descs: map[string]*prometheus.Desc{}}
	for _, f := range slices.Concat(families, webhookFamilies) {
		m.descs[f.name] = prometheus.NewDesc("carillon_"+f.name, f.help, f.labels, nil)
	}
	m.registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	c := &scrape{m, out}
	m.cluster(c)
	m.shards(c)
	m.clients(c)
	m.webhooks(c)
	m.peers(c)
}

// scrape is one reading.
type scrape struct {
	m   *metrics
	out chan<- prometheus.Metric
}

func (c *scrape) gauge(name string, v float64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(c.m.descs[name], prometheus.GaugeValue, v, labels...)
}

func (c *scrape) counter(name string, v uint64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(c.m.descs[name], prometheus.CounterValue, float64(v), labels...)
}

// spent is a counter of seconds.
func (c *scrape) spent(name string, v time.Duration, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(c.m.descs[name], prometheus.CounterValue, v.Seconds(), labels...)
}

func (c *scrape) flag(name string, v bool, labels ...string) {
	if v {
		c.gauge(name, 1, labels...)
	} else {
		c.gauge(name, 0, labels...)
	}
}

// bounds of the histograms, in microseconds: from 50 microseconds to a minute.
var bounds = []int64{
	50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
	1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
}

// histogram brings the executor's fine buckets to fewer; a bucket counts where it ends, so nothing looks faster than it was.
func (c *scrape) histogram(name string, h executor.HistogramSnapshot, labels ...string) {
	buckets := make(map[float64]uint64, len(bounds))
	i, seen := 0, uint64(0)
	for _, bound := range bounds {
		for i < len(h.Counts) && executor.BucketBound(i) <= bound {
			seen += h.Counts[i]
			i++
		}
		buckets[float64(bound)/1e6] = seen
	}
	c.out <- prometheus.MustNewConstHistogram(c.m.descs[name], h.Count, float64(h.Sum)/1e6, buckets, labels...)
}

func (m *metrics) cluster(c *scrape) {
	n := m.n
	state, _ := n.fsm.look()
	c.gauge("build_info", 1, n.config.Version, n.config.ID)
	c.flag("ready", n.readiness() == nil)
	c.gauge("members", float64(len(state.Members)))
	c.gauge("members_alive", float64(len(n.gossip.peers())))
	c.gauge("map_version", float64(state.Version))
	d := n.dir.Load()
	c.flag("directory_leader", d != nil && d.leads())
	c.flag("directory_has_leader", d != nil && d.leader() != "")
	c.flag("directory_failed", n.fsm.err() != nil)
	c.counter("calls_forwarded_total", uint64(n.router.forwarded.Load()))
	c.counter("calls_retried_total", uint64(n.router.retried.Load()))
	c.histogram("propose_seconds", n.router.proposals.Snapshot())
	var loops executor.LoopStats
	for _, l := range n.loops {
		s := l.Stats()
		loops.Turns += s.Turns
		loops.Sleeps += s.Sleeps
		loops.Panics += s.Panics
		loops.ClockSteps += s.ClockSteps
	}
	c.counter("loop_turns_total", loops.Turns)
	c.counter("loop_sleeps_total", loops.Sleeps)
	c.counter("loop_panics_total", loops.Panics)
	c.counter("clock_steps_back_total", loops.ClockSteps)
}

func (m *metrics) shards(c *scrape) {
	var late, wheelLate, appends, votes executor.HistogramSnapshot
	for _, r := range m.n.replicas.all() {
		label := shardLabel(r.id)
		c.flag("shard_failed", r.failed.Load() != nil, label)
		c.counter("shard_reopened_total", uint64(r.reopened.Load()), label)
		open := r.open.Load()
		c.flag("shard_open", open != nil, label)
		if open == nil {
			continue
		}
		s := open.Status()
		m.shard(c, label, s)
		late.Merge(s.Executor.HandOutLate)
		wheelLate.Merge(s.Executor.WheelLate)
		appends.Merge(s.Disk.Appends)
		votes.Merge(s.Disk.Votes)
	}
	c.histogram("lateness_seconds", late)
	c.histogram("wheel_lateness_seconds", wheelLate)
	c.histogram("log_append_seconds", appends)
	c.histogram("log_vote_seconds", votes)
	log := m.n.logStats()
	c.gauge("log_segments", float64(log.Segments))
	c.gauge("log_segment_bytes", float64(log.Bytes))
	c.gauge("log_live_bytes", float64(log.Live))
	c.counter("log_batches_total", log.Batches)
	c.counter("log_records_total", log.Records)
	c.counter("log_moved_records_total", log.Moved)
	c.counter("log_written_bytes_total", log.Written)
	c.flag("log_damaged", log.Damaged)
}

func (m *metrics) shard(c *scrape, label string, s shard.Status) {
	c.flag("shard_has_leader", s.Leader != "", label)
	c.flag("shard_leading", s.Leading, label)
	c.flag("shard_firing", s.Firing, label)
	c.gauge("shard_term", float64(s.Term), label)
	c.gauge("shard_last_index", float64(s.LastIndex), label)
	c.gauge("shard_commit_index", float64(s.Commit), label)
	c.gauge("shard_applied_index", float64(s.Applied), label)
	c.gauge("shard_pending_timers", float64(s.Pending), label)
	c.gauge("shard_payload_bytes", float64(s.State.PayloadBytes), label)
	c.gauge("shard_finished_timers", float64(s.State.Finished), label)
	c.gauge("shard_remembered_requests", float64(s.State.Requests), label)
	c.gauge("shard_overdue_timers", float64(s.Overdue), label)
	c.gauge("shard_ready_timers", float64(s.Executor.Ready), label)
	c.gauge("shard_out_deliveries", float64(s.Executor.Out), label)
	c.gauge("shard_ops_waiting", float64(s.Executor.OpsWaiting), label)
	oldest := 0.0
	if s.Executor.OldestDue > 0 {
		oldest = max(0, m.n.now().Sub(time.UnixMilli(s.Executor.OldestDue)).Seconds())
	}
	c.gauge("shard_oldest_ready_seconds", oldest, label)
	c.counter("shard_fired_total", s.Executor.Fired, label)
	c.counter("shard_redelivered_total", s.Executor.Redelivered, label)
	c.counter("shard_leases_lapsed_total", s.Executor.Lapsed, label)
	c.gauge("shard_queued_commands", float64(s.Proposer.Queued), label)
	c.gauge("shard_queued_bytes", float64(s.Proposer.QueuedBytes), label)
	c.gauge("shard_entries_in_flight", float64(s.Proposer.InFlight), label)
	c.counter("shard_entries_total", s.Proposer.Entries, label)
	c.counter("shard_commands_total", s.Proposer.Commands, label)
	c.counter("shard_overloaded_total", s.Proposer.Overloaded, label)
	c.counter("shard_unknown_total", s.Proposer.Unknown, label)
	c.counter("shard_rejected_total", s.Proposer.Rejected, label)
	c.counter("shard_log_bytes_total", s.Disk.Bytes, label)
	c.gauge("shard_log_write_seconds", s.Disk.Writing.Seconds(), label)
	c.gauge("shard_snapshot_index", float64(s.Snapshot.Index), label)
	c.gauge("shard_snapshot_bytes", float64(s.Snapshot.Bytes), label)
	c.gauge("shard_log_since_snapshot_bytes", float64(s.Snapshot.LogBytes), label)
	c.counter("shard_snapshots_total", s.Snapshot.Taken, label)
	c.spent("shard_snapshot_seconds_total", s.Snapshot.Total, label)
	c.counter("shard_snapshot_failures_total", s.Snapshot.Failed, label)
}

func (m *metrics) clients(c *scrape) {
	s := m.n.server.Stats()
	for _, method := range s.Methods {
		c.gauge("grpc_running", float64(method.Running), method.Method)
		ended := uint64(0)
		for code, n := range method.Codes {
			ended += n
			if n > 0 {
				c.counter("grpc_calls_total", n, method.Method, codes.Code(code).String())
			}
		}
		if ended > 0 {
			m.latency(c, method)
		}
	}
	c.gauge("client_connections", float64(s.Connections))
	c.counter("client_connections_refused_total", s.RefusedConnections)
	c.gauge("workers", float64(s.Workers))
	c.counter("workers_refused_total", s.RefusedWorkers)
	c.counter("http_calls_refused_total", s.RefusedHTTP)
	c.gauge("batches_waiting", float64(s.WaitingBatches))
	c.counter("batches_refused_total", s.RefusedBatches)
	c.counter("early_calls_held_total", s.HeldCalls)
	c.gauge("queues", float64(s.Hub.Queues))
	c.gauge("queues_unattended", float64(s.Hub.Unattended))
	c.gauge("credits", float64(s.Hub.Credits))
	c.counter("deliveries_sent_total", s.Sent)
	c.counter("answers_total", s.Done, "done")
	c.counter("answers_total", s.Stale, "stale")
	c.counter("answers_total", s.Failed, "failed")
	c.counter("bad_tokens_total", s.BadTokens)
	c.counter("deliveries_given_back_total", s.GivenBack)
	c.counter("deliveries_left_to_lease_total", s.NotGivenBack)
	c.counter("streams_stalled_total", s.StalledStreams)
	c.counter("panics_total", s.Panics, "client")
}

// latency is the histogram of one method; streams have none.
func (m *metrics) latency(c *scrape, method transport.MethodStats) {
	buckets, seen := map[float64]uint64{}, uint64(0)
	for i, n := range method.Latency {
		if seen += n; i < len(method.Latency)-1 {
			buckets[float64(uint64(1)<<i)/1e6] = seen
		}
	}
	if seen > 0 {
		c.out <- prometheus.MustNewConstHistogram(m.descs["grpc_seconds"], seen, method.Total.Seconds(), buckets, method.Method)
	}
}

func (m *metrics) peers(c *scrape) {
	s := m.n.mux.Stats()
	c.counter("peer_frames_total", s.FramesIn, "in")
	c.counter("peer_frames_total", s.FramesOut, "out")
	c.counter("peer_bytes_total", s.BytesIn, "in")
	c.counter("peer_bytes_total", s.BytesOut, "out")
	c.counter("peer_dials_total", s.Dials)
	c.counter("peer_dial_errors_total", s.DialErrors)
	c.counter("peer_refused_total", s.Refused)
	c.counter("peer_lost_total", s.Lost)
	c.counter("peer_reconnects_total", s.Reconnects)
	c.counter("peer_bad_frames_total", s.BadFrames)
	c.counter("peer_call_errors_total", s.CallErrors)
	c.counter("peer_queue_full_total", s.QueueFull)
	c.counter("peer_busy_total", s.Busy)
	c.counter("peer_expired_total", s.Expired)
	c.counter("panics_total", s.Panics, "peer")
	c.counter("peer_snapshots_sent_total", s.SnapshotsSent)
	c.counter("peer_snapshots_received_total", s.SnapshotsReceived)
	c.counter("peer_snapshot_errors_total", s.SnapshotErrors)
	c.counter("peer_snapshot_bytes_total", s.SnapshotBytes)
	c.gauge("peer_connections", float64(s.Connections))
	c.gauge("peer_queued_messages", float64(s.QueuedMessages))
	c.gauge("peer_queued_bytes", float64(s.QueuedBytes))
	c.gauge("peer_inbound_waiting", float64(s.Inbound))
	c.gauge("peer_handlers", float64(s.Handlers))
}
