package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newClusterCommand)

func newClusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Show how the cluster stands",
		Example: `  carillon cluster status
  carillon cluster members
  carillon cluster shards -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("%q is not one of status, members, shards", args[0])
			}
			return usagef("one of status, members, shards is needed")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(
		lookCommand("status", "Show the cluster as the asked node sees it", `  carillon cluster status
  carillon cluster status --addr 10.0.0.2:7400 -o json | jq .ready`, printStatus),
		lookCommand("members", "List the nodes", "  carillon cluster members", printMembers),
		lookCommand("shards", "List the shards with their leaders and replicas", "  carillon cluster shards", printShards),
	)
	return cmd
}

// lookCommand makes a command without arguments that asks and prints.
func lookCommand(name, short, example string, look func(context.Context, *cobra.Command, *client.Client, format) error) *cobra.Command {
	var conn connection
	var output format
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: example,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error { return look(ctx, cmd, c, output) })
		},
	}
	conn.flags(cmd.Flags())
	output.flag(cmd.Flags(), formatTable)
	return cmd
}

// statusJSON is the answer of cluster status in JSON.
type statusJSON struct {
	ClusterID        string `json:"cluster_id"`
	NodeID           string `json:"node_id"`
	Version          string `json:"version"`
	Ready            bool   `json:"ready"`
	Members          int    `json:"members"`
	MembersAlive     int    `json:"members_alive"`
	Shards           int    `json:"shards"`
	ShardsWithLeader int    `json:"shards_with_leader"`
	Pending          int64  `json:"pending"`
	Overdue          int64  `json:"overdue"`
	MapVersion       int64  `json:"map_version"`
	Now              string `json:"now"`
}

func printStatus(ctx context.Context, cmd *cobra.Command, c *client.Client, f format) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	ready := "yes"
	if !s.Ready {
		ready = "no: not every shard has a leader that fires"
	}
	j := statusJSON{
		s.ClusterID, s.NodeID, s.Version, s.Ready, s.Members, s.MembersAlive, s.Shards, s.ShardsWithLeader,
		s.Pending, s.Overdue, s.MapVersion, stamp(s.Now),
	}
	return printOne(cmd.OutOrStdout(), f, j, []row{
		{"ready", ready},
		{"members alive", fmt.Sprintf("%d of %d", s.MembersAlive, s.Members)},
		{"shards with a leader", fmt.Sprintf("%d of %d", s.ShardsWithLeader, s.Shards)},
		{"timers pending", fmt.Sprint(s.Pending)},
		{"timers overdue", fmt.Sprint(s.Overdue)},
		{"cluster", shown(s.ClusterID)},
		{"asked node", shown(s.NodeID)},
		{"version", shown(s.Version)},
		{"map version", fmt.Sprint(s.MapVersion)},
		{"clock", stamp(s.Now)},
	})
}

// memberJSON is a line of cluster members in JSON.
type memberJSON struct {
	ID             string `json:"id"`
	Alive          bool   `json:"alive"`
	Leads          int    `json:"leads"`
	Replicas       int    `json:"replicas"`
	ClientAddr     string `json:"client_addr"`
	PeerAddr       string `json:"peer_addr"`
	GossipAddr     string `json:"gossip_addr"`
	HTTPAddr       string `json:"http_addr"`
	DirectoryVoter bool   `json:"directory_voter"`
	Version        string `json:"version"`
	BootID         string `json:"boot_id"`
}

func printMembers(ctx context.Context, cmd *cobra.Command, c *client.Client, f format) error {
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(members, func(a, b client.Member) int { return strings.Compare(a.ID, b.ID) })
	list := make([]memberJSON, 0, len(members))
	var rows [][]string
	for _, m := range members {
		list = append(list, memberJSON{m.ID, m.Alive, m.Leads, m.Replicas, m.ClientAddr, m.PeerAddr, m.GossipAddr, m.HTTPAddr,
			m.DirectoryVoter, m.Version, m.BootID})
		rows = append(rows, []string{shown(m.ID), yes(m.Alive), fmt.Sprint(m.Leads), fmt.Sprint(m.Replicas), dash(m.ClientAddr),
			dash(m.PeerAddr), dash(m.GossipAddr), dash(m.HTTPAddr), yes(m.DirectoryVoter), dash(m.Version)})
	}
	if f == formatJSON {
		return printJSON(cmd.OutOrStdout(), list)
	}
	return printTable(cmd.OutOrStdout(),
		[]string{"ID", "ALIVE", "LEADS", "REPLICAS", "CLIENT", "PEER", "GOSSIP", "HTTP", "VOTER", "VERSION"}, rows)
}

// shardJSON is a line of cluster shards in JSON.
type shardJSON struct {
	ID           int      `json:"id"`
	Leader       string   `json:"leader"`
	Firing       bool     `json:"firing"`
	Epoch        int64    `json:"epoch"`
	Replicas     []string `json:"replicas"`
	Pending      int64    `json:"pending"`
	Overdue      int64    `json:"overdue"`
	AppliedIndex int64    `json:"applied_index"`
}

func printShards(ctx context.Context, cmd *cobra.Command, c *client.Client, f format) error {
	shards, err := c.Shards(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(shards, func(a, b client.Shard) int { return a.ID - b.ID })
	list := make([]shardJSON, 0, len(shards))
	var rows [][]string
	for _, s := range shards {
		list = append(list, shardJSON{s.ID, s.Leader, s.Firing, s.Epoch, s.Replicas, s.Pending, s.Overdue, s.AppliedIndex})
		rows = append(rows, []string{fmt.Sprint(s.ID), dash(s.Leader), yes(s.Firing), fmt.Sprint(s.Epoch), fmt.Sprint(s.Pending),
			fmt.Sprint(s.Overdue), fmt.Sprint(s.AppliedIndex), dash(strings.Join(s.Replicas, " "))})
	}
	if f == formatJSON {
		return printJSON(cmd.OutOrStdout(), list)
	}
	return printTable(cmd.OutOrStdout(), []string{"SHARD", "LEADER", "FIRING", "EPOCH", "PENDING", "OVERDUE", "APPLIED", "REPLICAS"}, rows)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return shown(text)
}
