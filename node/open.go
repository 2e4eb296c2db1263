package node

import (
	"errors"
	"fmt"
	"net"

	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport"
	"github.com/carillon-timers/carillon/transport/peer"
	"github.com/carillon-timers/carillon/transport/webhook"
)

// listeners are open from open until the part that serves them has ended.
type listeners struct{ client, peer, http net.Listener }

// open takes the data folder and the ports, and builds all parts; nothing but memberlist runs yet.
func (n *Node) open() error {
	var err error
	if n.identity, err = openIdentity(n.config.Dir, n.config.ID); err != nil {
		return err
	}
	if err := n.openLog(); err != nil {
		return err
	}
	id := n.identity.get()
	if id.ClusterID != "" {
		if err := n.checkShards(id.Shards); err != nil {
			return err
		}
	}
	if err := n.listen(); err != nil {
		return err
	}
	meta := nodeMeta{
		ID: n.config.ID, Boot: n.boot, Disk: id.DiskUUID, Client: n.advertise.Client, Peer: n.advertise.Peer,
		HTTP: n.advertise.HTTP, Version: n.config.Version,
	}
	if id.ClusterID == "" && n.config.BootstrapExpect > 0 {
		meta.Expect, meta.Shards = n.config.BootstrapExpect, n.wantShards()
	}
	if len(id.Replicas) > 0 {
		meta.Cluster = id.ClusterID // its map has been applied here, so it exists
	}
	n.gossip = newGossip(meta, n.mono, n.log)
	gossipAddr, err := n.gossip.start(n.config.GossipAddr, n.advertise.Gossip)
	if err != nil {
		return err
	}
	n.advertise.Gossip = n.advertised(gossipAddr, n.config.AdvertiseGossipAddr)
	addrs := *n.addrs.Load()
	addrs.Gossip = gossipAddr
	n.addrs.Store(&addrs)
	return n.build()
}

// build makes the parts that need no more than addresses.
func (n *Node) build() error {
	for range n.config.Loops {
		n.loops = append(n.loops, executor.NewLoop(executor.LoopOptions{Now: n.now, Logger: n.log}))
	}
	n.replicas = newReplicaSet(n)
	n.mux = peer.New(peer.Config{
		NodeID: n.config.ID, BootID: n.boot, Version: n.config.Version, Resolve: n.resolve, Dial: n.deps.Dial, Logger: n.log,
		ClusterID: n.identity.clusterID, OnPeerLost: n.peerLost,
	})
	n.router = &router{
		self: n.config.ID, limit: n.config.RouteTimeout, shards: n.shards, alive: n.alive, call: n.mux.Call, now: n.mono,
		replicas: func(s int) []string { state, _ := n.fsm.look(); return state.replicas(s) },
		local:    n.replicas.local,
	}
	var err error
	if n.webhooks, err = newWebhooks(n); err != nil {
		return err
	}
	tc := transport.DefaultConfig()
	tc.Now, tc.Logger, tc.StopTimeout = n.now, n.log, n.config.StopTimeout/4
	tc.Webhooks, tc.WebhookHeaders = n.webhooks.policy.CheckURL, webhook.CheckHeaders
	if err := tc.Validate(); err != nil {
		return err
	}
	n.server = transport.NewServer(tc, &backend{router: n.router, n: n})
	n.handle()
	n.metrics = newMetrics(n)
	if n.listeners.http != nil {
		n.http = newHTTPServer(n)
	}
	return nil
}

// listen opens the client, peer and HTTP listeners and works out what to advertise.
func (n *Node) listen() error {
	var addrs Addrs
	for _, l := range []struct {
		name, bind string
		ln         *net.Listener
		real       *string
	}{
		{"client", n.config.ClientAddr, &n.listeners.client, &addrs.Client},
		{"peer", n.config.PeerAddr, &n.listeners.peer, &addrs.Peer},
		{"HTTP", n.config.HTTPAddr, &n.listeners.http, &addrs.HTTP},
	} {
		if l.bind == "" {
			continue
		}
		ln, err := n.deps.Listen("tcp", l.bind)
		if err != nil {
			return fmt.Errorf("%s address %s: %w", l.name, l.bind, err)
		}
		*l.ln, *l.real = ln, ln.Addr().String()
	}
	n.addrs.Store(&addrs)
	n.advertise = Addrs{
		Client: n.advertised(addrs.Client, n.config.AdvertiseClientAddr),
		Peer:   n.advertised(addrs.Peer, n.config.AdvertisePeerAddr),
		Gossip: n.advertised(n.config.GossipAddr, n.config.AdvertiseGossipAddr),
	}
	if addrs.HTTP != "" {
		n.advertise.HTTP = n.advertised(addrs.HTTP, n.config.AdvertiseHTTPAddr)
	}
	return nil
}

// advertised is how others reach a listener.
func (n *Node) advertised(bound, given string) string {
	if given != "" {
		return given
	}
	host, port, err := net.SplitHostPort(bound)
	if err != nil {
		return bound // Validate and the listener have accepted it, so this does not happen
	}
	if n.config.AdvertiseHost != "" {
		return net.JoinHostPort(n.config.AdvertiseHost, port)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = machineIP()
	}
	return net.JoinHostPort(host, port)
}

// machineIP is the first address of this machine that others may reach, IPv4 before IPv6.
func machineIP() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	six := ""
	for _, a := range addrs {
		ipNet, ok := a.(*net.IPNet)
		switch {
		case !ok || !ipNet.IP.IsGlobalUnicast():
		case ipNet.IP.To4() != nil:
			return ipNet.IP.String()
		case six == "":
			six = ipNet.IP.String()
		}
	}
	if six != "" {
		return six
	}
	return "127.0.0.1"
}

// closeOpened undoes a start that failed half-way.
func (n *Node) closeOpened() error {
	var errs []error
	for _, ln := range []net.Listener{n.listeners.client, n.listeners.peer, n.listeners.http} {
		if ln != nil {
			errs = append(errs, ln.Close())
		}
	}
	if n.gossip != nil {
		errs = append(errs, n.gossip.stop(0))
	}
	errs = append(errs, n.closeLog())
	if n.identity != nil {
		errs = append(errs, n.identity.close())
	}
	return errors.Join(errs...)
}
