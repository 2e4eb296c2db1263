package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// serveNATS is the argument that makes this program one NATS server.
const serveNATS = "nats-server"

const (
	natsStream    = "TIMERS"
	natsSchedules = "schedules."
	natsDue       = "due."
	// natsPending is how many publishes may wait for their acks at once.
	natsPending = 16_384
)

// runNATS is one NATS server with JetStream on disk, which flushes each write, until the context ends.
func runNATS(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(serveNATS, flag.ContinueOnError)
	name := f.String("name", "", "the server's name")
	port := f.Int("port", 0, "port for clients")
	route := f.Int("route", 0, "port for the other servers")
	peers := f.String("peers", "", "URLs of all servers, parted by commas")
	dir := f.String("dir", "", "data folder")
	if err := f.Parse(args); err != nil {
		return err
	}
	var routes []*url.URL
	for peer := range strings.SplitSeq(*peers, ",") {
		u, err := url.Parse(peer)
		if err != nil {
			return err
		}
		routes = append(routes, u)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: *name, Host: "127.0.0.1", Port: *port, JetStream: true, StoreDir: *dir, SyncAlways: true, NoSigs: true,
		Cluster: server.ClusterOpts{Name: "compare", Host: "127.0.0.1", Port: *route}, Routes: routes,
	})
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// jetStream is three NATS servers and a stream of three replicas with message schedules; what is due is consumed with
// explicit acks. Each caller publishes and waits for the ack; a batch publishes all and then waits for all acks.
type jetStream struct {
	servers []*local.Process
	urls    map[string]string // of a server by its name
	conns   []*nats.Conn
	publish jetstream.JetStream
	stream  jetstream.Stream
}

func (j *jetStream) Title() string {
	return "NATS JetStream " + server.VERSION + " schedules, R3 file, sync always"
}

func (j *jetStream) Start(ctx context.Context, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ports, err := local.FreePorts(6)
	if err != nil {
		return err
	}
	var peers []string
	for i := range 3 {
		peers = append(peers, fmt.Sprintf("nats://127.0.0.1:%d", ports[3+i]))
	}
	j.urls = map[string]string{}
	for i := range 3 {
		p := &local.Process{Name: fmt.Sprintf("nats%d", i+1), Path: self, Log: filepath.Join(dir, fmt.Sprintf("nats%d.log", i+1))}
		p.Args = []string{serveNATS, "-name", p.Name, "-port", fmt.Sprint(ports[i]), "-route", fmt.Sprint(ports[3+i]),
			"-peers", strings.Join(peers, ","), "-dir", filepath.Join(dir, p.Name)}
		j.urls[p.Name] = fmt.Sprintf("nats://127.0.0.1:%d", ports[i])
		if err := p.Start(); err != nil {
			return err
		}
		j.servers = append(j.servers, p)
	}
	if err := j.create(ctx); err != nil {
		return err
	}
	// Publish to the stream's leader: that is the shortest way.
	info, err := j.stream.Info(ctx)
	if err != nil {
		return err
	}
	conn, err := j.connect(ctx, j.urls[info.Cluster.Leader])
	if err != nil {
		return err
	}
	j.publish, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(natsPending))
	return err
}

// create makes the stream as soon as the servers have found each other.
func (j *jetStream) create(ctx context.Context) error {
	conn, err := j.connect(ctx, j.urls["nats1"])
	if err != nil {
		return err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		j.stream, err = js.CreateStream(call, jetstream.StreamConfig{
			Name: natsStream, Subjects: []string{natsSchedules + ">", natsDue + ">"}, Storage: jetstream.FileStorage, Replicas: 3,
			AllowMsgSchedules: true,
		})
		cancel()
		if err == nil {
			return nil
		}
		if waited := pause(ctx, 200*time.Millisecond); waited != nil {
			return errors.Join(err, waited)
		}
	}
}

// connect tries until the server is up.
func (j *jetStream) connect(ctx context.Context, url string) (*nats.Conn, error) {
	for {
		conn, err := nats.Connect(url, nats.Timeout(2*time.Second), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
		if err == nil {
			j.conns = append(j.conns, conn)
			return conn, nil
		}
		if waited := pause(ctx, 100*time.Millisecond); waited != nil {
			return nil, errors.Join(err, waited)
		}
	}
}

func natsMessage(t timer) *nats.Msg {
	return &nats.Msg{Subject: natsSchedules + t.id, Data: t.payload, Header: nats.Header{
		"Nats-Schedule":        {"@at " + t.due.UTC().Format(time.RFC3339Nano)},
		"Nats-Schedule-Target": {natsDue + t.id},
	}}
}

func (j *jetStream) Schedule(ctx context.Context, timers []timer) error {
	if len(timers) == 1 {
		_, err := j.publish.PublishMsg(ctx, natsMessage(timers[0]))
		return err
	}
	acks := make([]jetstream.PubAckFuture, len(timers))
	for i, t := range timers {
		ack, err := j.publish.PublishMsgAsync(natsMessage(t))
		if err != nil {
			return err
		}
		acks[i] = ack
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (j *jetStream) Work(ctx context.Context, handle func(string)) error {
	consumer, err := j.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "compare", FilterSubject: natsDue + ">", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: natsPending,
	})
	if err != nil {
		return err
	}
	running, err := consumer.Consume(func(m jetstream.Msg) {
		handle(strings.TrimPrefix(m.Subject(), natsDue))
		_ = m.Ack() // without it the message comes again, which is counted
	}, jetstream.PullMaxMessages(1000))
	if err != nil {
		return err
	}
	<-ctx.Done()
	running.Drain()
	<-running.Closed()
	return nil
}

// KillLeader kills the server that leads the stream.
func (j *jetStream) KillLeader(ctx context.Context) error {
	info, err := j.stream.Info(ctx)
	if err != nil {
		return err
	}
	for _, s := range j.servers {
		if s.Name == info.Cluster.Leader {
			s.Kill()
			return nil
		}
	}
	return fmt.Errorf("the stream's leader %q is none of the servers", info.Cluster.Leader)
}

func (j *jetStream) Stop() {
	for _, conn := range j.conns {
		conn.Close()
	}
	local.StopAll(j.servers...)
}
