package local

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// Cluster is a Carillon cluster of real processes, each with a data folder of its own.
type Cluster struct {
	Nodes []*Node
}

// Node is one `carillon server`.
type Node struct {
	Process
	Client, Peer, Gossip, HTTP string // its addresses
}

// NewCluster plans a cluster of n nodes under dir, on ports that are free now; extra are further arguments of each.
func NewCluster(binary, dir string, n, shards int, extra ...string) (*Cluster, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(4 * n)
	if err != nil {
		return nil, err
	}
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	var join []string
	for i := range n {
		join = append(join, addr(4*i+2))
	}
	c := &Cluster{}
	for i := range n {
		node := &Node{Client: addr(4 * i), Peer: addr(4*i + 1), Gossip: addr(4*i + 2), HTTP: addr(4*i + 3)}
		node.Name, node.Path = fmt.Sprintf("n%d", i+1), binary
		node.Log = filepath.Join(dir, node.Name+".log")
		node.Args = append([]string{"server", "--id", node.Name, "--dir", filepath.Join(dir, node.Name), "--client", node.Client,
			"--peer", node.Peer, "--gossip", node.Gossip, "--http", node.HTTP, "--join", strings.Join(join, ","),
			"--bootstrap-expect", fmt.Sprint(n), "--shards", fmt.Sprint(shards)}, extra...)
		c.Nodes = append(c.Nodes, node)
	}
	return c, nil
}

// Addrs are the client addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Client)
	}
	return addrs
}

// Start starts all nodes that are down.
func (c *Cluster) Start() error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// WaitReady waits until every node says that it is ready.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Kill ends all nodes with SIGKILL.
func (c *Cluster) Kill() {
	for _, n := range c.Nodes {
		n.Kill()
	}
}

// Stop ends all nodes in order.
func (c *Cluster) Stop() {
	var all []*Process
	for _, n := range c.Nodes {
		all = append(all, &n.Process)
	}
	StopAll(all...)
}

// WaitReady waits until the node says that it is ready.
func (n *Node) WaitReady(ctx context.Context) error {
	return waitOK(ctx, &n.Process, "http://"+n.HTTP+"/readyz")
}
