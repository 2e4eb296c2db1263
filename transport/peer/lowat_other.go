//go:build !linux

package peer

import "net"

// limitUnsent does nothing here: heartbeats may wait behind what the kernel has queued.
func limitUnsent(net.Conn) {}
