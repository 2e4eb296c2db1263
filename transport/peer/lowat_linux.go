package peer

import (
	"net"

	"golang.org/x/sys/unix"
)

// unsentBytes is how much the kernel may hold that it has not sent yet: what is queued there is out of reach of the
// urgent lane. What is sent and not yet acknowledged is not bounded by it, so throughput does not suffer.
const unsentBytes = 128 << 10

func limitUnsent(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	// A kernel that refuses only makes heartbeats wait a little longer behind bulk.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
	})
}
