//go:build unix

package peer

import (
	"errors"
	"net"
	"syscall"
)

// directWriter writes to a socket without waiting for room. One goroutine at a time uses it.
type directWriter struct {
	raw  syscall.RawConn
	once func(fd uintptr) bool // is w.write
	b    []byte
	n    int
	err  error
}

// socketWriter returns nil if nc is no TCP socket.
func socketWriter(nc net.Conn) func([]byte) (int, error) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	w := &directWriter{raw: raw}
	w.once = w.write
	return w.try
}

// try writes what the socket's buffer takes.
func (w *directWriter) try(b []byte) (int, error) {
	w.b, w.n, w.err = b, 0, nil
	err := w.raw.Write(w.once)
	w.b = nil
	if err == nil {
		err = w.err
	}
	return w.n, err
}

// write is called with the socket; true says that it is not to be called again when there is room.
func (w *directWriter) write(fd uintptr) bool {
	for len(w.b) > 0 {
		n, err := syscall.Write(int(fd), w.b)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
		case err != nil:
			w.err = err
		default:
			w.n = n
		}
		break
	}
	return true
}
