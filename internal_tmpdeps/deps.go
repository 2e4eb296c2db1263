package tmpdeps

import (
	_ "github.com/buraksezer/consistent"
	_ "github.com/hashicorp/memberlist"
	_ "github.com/hashicorp/raft"
	_ "github.com/hashicorp/raft-boltdb/v2"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/spf13/cobra"
	_ "github.com/tidwall/btree"
	_ "go.etcd.io/bbolt"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails"
	_ "google.golang.org/grpc/health"
	_ "google.golang.org/grpc/reflection"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/go-msgpack/v2/codec"
)
