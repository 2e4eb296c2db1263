package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// A stop ends the streams with an error that says where to go, settles what was answered, and gives the rest back.
func TestStopEndsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome {
			time.Sleep(100 * time.Millisecond)
			return Outcome{}
		}}
		h := serve(t, testConfig(), backend)
		newSource(1).add(h.server.Hub(), queueNamed("q"), 0, 10)
		w, silent := h.work("q", 10), h.workOn(h.dial(), "other", 10)
		got := w.take(10)
		w.send(&carillonv1.WorkRequest{Acks: [][]byte{got[0].Token}})
		synctest.Wait()
		begin := time.Now()
		h.stop()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
		w.settled(1)
		for _, one := range []*workClient{w, silent} {
			if err := one.workError(); !errors.Is(err, shard.ErrUnavailable) {
				t.Errorf("a stream ends with %v", err)
			}
		}
		if st := h.server.Stats(); st.GivenBack != 9 || st.Done != 1 || st.Workers != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

// A call that does not end is cut off after the limit.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{onStatus: func(ctx context.Context) (*carillonv1.StatusResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, onApply: func(ctx context.Context, _ *raftfsm.Command) Outcome {
			<-ctx.Done()
			return Outcome{Err: ctx.Err()}
		}}
		c := testConfig()
		c.SettleTimeout = time.Hour
		h := serve(t, c, backend)
		failed := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := h.cluster.Status(ctx, &carillonv1.StatusRequest{})
			failed <- err
		}()
		// The same for what a dead worker had, if the backend does not answer.
		newSource(1).add(h.server.Hub(), queueNamed("q"), 0, 5)
		w := h.workOn(h.dial(), "q", 5)
		w.take(5)
		w.cancel()
		synctest.Wait()
		begin := time.Now()
		h.stop()
		if took := time.Since(begin); took != h.server.config.StopTimeout {
			t.Errorf("the stop took %v", took)
		}
		if err := <-failed; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
			t.Errorf("the call ends with %v", err)
		}
	})
}

// A watcher of the health hears that the server stops and does not hold it up.
func TestStopTellsHealthWatchers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		h.server.SetServing(true)
		watch, err := healthv1.NewHealthClient(h.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		h.stop()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
		if _, err := watch.Recv(); err != nil && status.Code(err) != codes.Canceled {
			t.Errorf("got %v", err)
		}
	})
}

// Run leaves nothing behind, however often and early it is stopped: the bubble fails on a goroutine that stays.
func TestStartStopStress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for i := range 30 {
			h := serve(t, testConfig(), &fakeBackend{})
			if i%3 == 1 {
				h.work("q", 1)
			}
			if i%3 == 2 {
				newSource(1).add(h.server.Hub(), queueNamed("q"), 0, 5)
				h.work("q", 5).take(5)
			}
			h.stop()
			h.conn.Close()
		}
	})
}

// Connections that break in the middle of everything leave neither goroutines nor subscribers.
func TestAbruptDisconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{}
		h := serve(t, testConfig(), backend)
		src, q := newSource(1), queueNamed("q")
		src.add(h.server.Hub(), q, 0, 2000)
		taken := 0
		for i := range 20 {
			conn := h.dial()
			w := h.workOn(conn, "q", 50)
			if i%2 == 0 {
				w.take(20)
			}
			synctest.Wait()
			conn.Close()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		taken = 2000 - src.left(q)
		st := h.server.Stats()
		if st.Workers != 0 || st.Connections != 0 || st.Hub.Subscribers != 0 || st.Hub.Credits != 0 {
			t.Errorf("left behind: %+v", st)
		}
		if taken == 0 || int(st.GivenBack) != taken {
			t.Errorf("%d taken, %d given back", taken, st.GivenBack)
		}
	})
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Heartbeat = HeartbeatLimit
	if err := NewServer(c, &fakeBackend{}).Run(t.Context(), bufconn.Listen(1)); err == nil {
		t.Error("a bad config is served")
	}
	h := serve(t, testConfig(), &fakeBackend{})
	h.stop()
	if err := h.server.Run(t.Context(), bufconn.Listen(1)); err == nil {
		t.Error("Run ran twice")
	}
	ln := bufconn.Listen(1)
	ln.Close()
	if err := NewServer(testConfig(), &fakeBackend{}).Run(t.Context(), ln); err == nil {
		t.Error("a closed listener is served")
	}
}

func TestConfigNamesTheField(t *testing.T) {
	t.Parallel()
	if err := testConfig().Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Now = nil },
		func(c *Config) { c.Logger = nil },
		func(c *Config) { c.MaxPayloadBytes = raftfsm.MaxPayloadBytes + 1 },
		func(c *Config) { c.MaxConnections = 0 },
		func(c *Config) { c.MaxStreams = 0 },
		func(c *Config) { c.MaxWorkers = 0 },
		func(c *Config) { c.CallTimeout = 0 },
		func(c *Config) { c.Heartbeat = 0 },
		func(c *Config) { c.SendTimeout = 0 },
		func(c *Config) { c.StopTimeout = -1 },
		func(c *Config) { c.SettleTimeout = 0 },
	} {
		c := testConfig()
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%+v passes", c)
		}
	}
}

func TestPanicsBecomeErrors(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{
		onStatus: func(context.Context) (*carillonv1.StatusResponse, error) { panic("boom") },
		onApply:  func(context.Context, *raftfsm.Command) Outcome { panic("boom") },
	}
	h := serve(t, testConfig(), backend)
	if _, err := h.cluster.Status(t.Context(), &carillonv1.StatusRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
	w := h.work("q", 0)
	w.send(&carillonv1.WorkRequest{Acks: [][]byte{raftfsm.Token{Namespace: "default", ID: "x"}.Append(nil)}})
	for {
		if _, err := w.Recv(); err != nil {
			if status.Code(err) != codes.Internal {
				t.Errorf("the stream ends with %v", err)
			}
			break
		}
	}
	if _, err := h.cluster.Members(t.Context(), &carillonv1.MembersRequest{}); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if n := h.server.Stats().Panics; n != 2 {
		t.Errorf("%d panics were counted", n)
	}
}

func TestHealthAndReflection(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{})
	health := healthv1.NewHealthClient(h.conn)
	for _, serving := range []bool{false, true, false} {
		if serving {
			h.server.SetServing(true)
		} else {
			h.server.SetServing(false)
		}
		for _, service := range []string{"", "carillon.v1.Timers"} {
			resp, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
			if err != nil || (resp.Status == healthv1.HealthCheckResponse_SERVING) != serving {
				t.Errorf("%q: got %v, %v, want serving %v", service, resp, err, serving)
			}
		}
	}
	stream, err := reflectionv1.NewServerReflectionClient(h.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, s := range resp.GetListServicesResponse().GetService() {
		names[s.Name] = true
	}
	for _, want := range []string{"carillon.v1.Timers", "carillon.v1.Deliveries", "carillon.v1.Cluster", "grpc.health.v1.Health"} {
		if !names[want] {
			t.Errorf("%s is not listed in %v", want, names)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

func TestLimitsOfConnectionsAndWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.MaxConnections, c.MaxWorkers = 2, 1
		h := serve(t, c, &fakeBackend{})
		h.work("q", 1).Recv()
		err := h.workOn(h.dial(), "q", 1).workError()
		var overload *shard.OverloadedError
		if !errors.As(err, &overload) || overload.RetryAfter <= 0 {
			t.Errorf("one worker too many: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := carillonv1.NewClusterClient(h.dial()).Status(ctx, &carillonv1.StatusRequest{}); err == nil {
			t.Error("a connection too many is served")
		}
		if st := h.server.Stats(); st.Connections != 2 || st.RefusedConnections == 0 || st.RefusedWorkers != 1 {
			t.Errorf("got %+v", st)
		}
	})
}

// The SDK's pings keep an idle connection for hours, and none of them counts as too many.
func TestKeepAliveOfAnIdleClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		var dials atomic.Int64
		conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				dials.Add(1)
				return h.listener.DialContext(ctx)
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := carillonv1.NewClusterClient(conn).Status(t.Context(), &carillonv1.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if state := conn.GetState(); state != connectivity.Ready || dials.Load() != 1 {
			t.Errorf("after two idle hours: %v, %d connections", state, dials.Load())
		}
	})
}

// mute is a connection whose other side has vanished: nothing arrives any more, and nothing says so.
type mute struct {
	net.Conn
	gone   chan struct{} // closed when it falls silent
	closed chan struct{}
	once   sync.Once
}

func (m *mute) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	select {
	case <-m.gone:
		<-m.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (m *mute) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

func TestKeepAliveNoticesAVanishedClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		m := &mute{gone: make(chan struct{}), closed: make(chan struct{})}
		conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				if m.Conn != nil {
					return nil, errors.New("unreachable")
				}
				c, err := h.listener.DialContext(ctx)
				m.Conn = c
				return m, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		newSource(1).add(h.server.Hub(), queueNamed("q"), 0, 5)
		w := h.workOn(conn, "q", 5)
		w.take(5)
		close(m.gone)
		time.Sleep(pingInterval + pingTimeout + 5*time.Second)
		if st := h.server.Stats(); st.Workers != 0 || st.GivenBack != 5 {
			t.Errorf("got %+v", st)
		}
		conn.Close()
	})
}

func TestStatsCountCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{onStatus: func(context.Context) (*carillonv1.StatusResponse, error) {
			time.Sleep(3 * time.Millisecond)
			return &carillonv1.StatusResponse{}, nil
		}}
		h := serve(t, testConfig(), backend)
		for range 4 {
			if _, err := h.cluster.Status(t.Context(), &carillonv1.StatusRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := h.timers.Get(t.Context(), &carillonv1.GetRequest{Id: "none"}); status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
		methods := make(map[string]MethodStats)
		for _, m := range h.server.Stats().Methods {
			methods[m.Method] = m
		}
		s := methods["/carillon.v1.Cluster/Status"]
		if s.Codes[codes.OK] != 4 || s.Total != 12*time.Millisecond || s.Latency[12] != 4 || s.Running != 0 {
			t.Errorf("got %+v", s)
		}
		if g := methods["/carillon.v1.Timers/Get"]; g.Codes[codes.NotFound] != 1 {
			t.Errorf("got %+v", g)
		}
	})
}

func TestListPagesAreCutBySize(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{onList: func(q raftfsm.ListQuery) (page raftfsm.ListPage, err error) {
		for i := range 50 { // 50 timers of 64 KiB, in order
			if id := fmt.Sprintf("%03d", i); id > q.After {
				page.Timers = append(page.Timers, raftfsm.Status{State: raftfsm.Firing, Record: &raftfsm.Record{
					Namespace: q.Namespace, ID: id, Payload: make([]byte, 65536), Headers: []raftfsm.Pair{{Key: "k", Value: "v"}}}})
			}
		}
		return page, nil
	}}
	h := serve(t, testConfig(), backend)
	var got []*carillonv1.TimerStatus
	pages := 0
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		resp, err := h.timers.List(t.Context(), &carillonv1.ListRequest{Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		got, cursor = append(got, resp.Timers...), resp.NextCursor
	}
	if len(got) != 50 || pages != 4 {
		t.Fatalf("%d timers in %d pages", len(got), pages)
	}
	for i, s := range got {
		if s.Timer.Id != fmt.Sprintf("%03d", i) || s.State != carillonv1.State_STATE_FIRING || s.Timer.Headers["k"] != "v" {
			t.Fatalf("timer %d: %v", i, s.Timer.Id)
		}
	}
}
