package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Keep-alive, tested together with that of the SDK (a ping each 20 s, an answer within 10 s): a peer that vanished is
// noticed within half a minute in both directions, and no ping of the SDK counts as too many.
const (
	pingInterval    = 20 * time.Second
	pingTimeout     = 10 * time.Second
	pingMinInterval = 10 * time.Second
)

// Server is the gRPC server of a node.
type Server struct {
	config  Config           // set before sharing
	backend Backend          // set before sharing
	hub     *Hub             // set before sharing
	desk    *desk            // set before sharing
	grpc    *grpc.Server     // set before sharing
	health  *health.Server   // set before sharing
	methods map[string]*call // set before sharing: the counters of each method
	counts  counters

	// stopping ends when Run begins to stop: streams end then.
	stopping context.Context
	beginEnd context.CancelFunc
	// root ends when what is still on its way for streams must give up.
	root   context.Context
	cutOff context.CancelFunc
	// threads counts the goroutines of Work streams; they may outlive their handler, but not Run.
	threads sync.WaitGroup
	ran     atomic.Bool
}

// NewServer builds a server on top of the backend; Run serves. The config should have passed Validate, Run refuses it
// otherwise.
func NewServer(c Config, b Backend) *Server {
	s := &Server{config: c, backend: b, hub: NewHub(), desk: newDesk(c.Now), health: health.NewServer()}
	s.stopping, s.beginEnd = context.WithCancel(context.Background())
	s.root, s.cutOff = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMinInterval, PermitWithoutStream: true}),
		grpc.MaxConcurrentStreams(c.MaxStreams),
		grpc.MaxRecvMsgSize(maxReceiveBytes),
		grpc.MaxSendMsgSize(maxSendBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(pingInterval),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)
	s.grpc.RegisterService(s.timersDesc(), &timers{server: s})
	carillonv1.RegisterDeliveriesServer(s.grpc, &deliveries{server: s})
	carillonv1.RegisterClusterServer(s.grpc, &cluster{server: s})
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.methods = make(map[string]*call)
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			name := "/" + service + "/" + m.Name
			s.methods[name] = &call{name: name}
		}
	}
	s.SetServing(false)
	return s
}

// Hub is where the shards' executors announce what is ready.
func (s *Server) Hub() *Hub { return s.hub }

// SetServing says in grpc.health.v1 whether the node serves: for the whole server and for each service.
func (s *Server) SetServing(serving bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthv1.HealthCheckResponse_SERVING
	}
	for service := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(service, state)
	}
	s.health.SetServingStatus("", state)
}

// Run serves on the listener, which it closes, until the context ends: then it ends the streams, lets calls finish for
// StopTimeout, cuts off the rest, and returns when all goroutines of the server have. It can be called once.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	defer s.cutOff()
	if s.ran.Swap(true) {
		return errors.New("serve gRPC: Run was called before")
	}
	if err := s.config.Validate(); err != nil {
		return errors.Join(err, ln.Close())
	}
	var serving sync.WaitGroup
	failed := make(chan error, 1)
	serving.Go(func() {
		failed <- s.grpc.Serve(&boundedListener{Listener: ln, server: s})
	})
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		if err != nil {
			err = fmt.Errorf("serve gRPC on %v: %w", ln.Addr(), err)
		}
	}
	s.stop()
	serving.Wait()
	return err
}

// stop ends the server in bounded time.
func (s *Server) stop() {
	s.health.Shutdown()
	s.beginEnd()
	limit := time.NewTimer(s.config.StopTimeout)
	defer limit.Stop()
	done := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		s.grpc.GracefulStop()
		s.threads.Wait()
		close(done)
	})
	select {
	case <-done:
	case <-limit.C:
		s.config.Logger.Warn("gRPC calls cut off: they did not end in time", "limit", s.config.StopTimeout)
		s.cutOff()
		s.grpc.Stop()
	}
	stopping.Wait()
}

// boundedListener closes connections over the limit at once; touched by the goroutine that accepts alone, but for the
// counters.
type boundedListener struct {
	net.Listener
	server *Server
	full   bool
}

func (l *boundedListener) Accept() (net.Conn, error) {
	counts, limit := &l.server.counts, int64(l.server.config.MaxConnections)
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if counts.connections.Add(1) <= limit {
			l.full = false
			return &boundedConn{Conn: conn, open: &counts.connections, addr: &callerAddr{Addr: conn.RemoteAddr()}}, nil
		}
		counts.connections.Add(-1)
		counts.refused.Add(1)
		if !l.full { // once for each time that it fills up
			l.full = true
			l.server.config.Logger.Warn("client connection refused: the limit is reached", "limit", limit, "remote", conn.RemoteAddr())
		}
		if err := conn.Close(); err != nil {
			l.server.config.Logger.Debug("close a refused connection", "err", err)
		}
	}
}

type boundedConn struct {
	net.Conn
	open   *atomic.Int64
	addr   *callerAddr
	closed atomic.Bool
}

// callerAddr is the address of a connection's other end; gRPC hands it on with each call.
type callerAddr struct {
	net.Addr
	schedules, cancels caller
}

// caller is who calls a gated method. Refused schedules do not hold cancels, which make room.
func (a *callerAddr) caller(method string) *caller {
	if method == carillonv1.Timers_CancelBatch_FullMethodName {
		return &a.cancels
	}
	return &a.schedules
}

func (c *boundedConn) RemoteAddr() net.Addr { return c.addr }

func (c *boundedConn) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}
