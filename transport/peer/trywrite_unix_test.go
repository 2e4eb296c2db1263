//go:build unix

package peer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// A socket takes what there is room for, at once, and an end that is closed is an error.
func TestSocketWriter(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	x, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	y, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = y.Close() }()
	try := tryWriter(x)
	if try == nil {
		t.Fatal("a TCP connection cannot be written to without waiting")
	}
	want := bytes.Repeat([]byte("0123456789"), 200_000)
	sent := 0
	for range 10_000 { // until nothing fits any more
		n, err := try(want[sent:])
		if err != nil {
			t.Fatal(err)
		}
		if sent += n; n == 0 || sent == len(want) {
			break
		}
	}
	if sent == 0 {
		t.Fatal("nothing was written")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := x.Write(want[sent:]); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, len(want))
	if _, err := io.ReadFull(y, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read something else: %v", err)
	}
	wg.Wait()
	_ = x.Close()
	if _, err := try([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed socket: %v", err)
	}
}
