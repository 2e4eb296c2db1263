package codec

import (
	"strings"
	"testing"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// The pool gives what is asked for, and takes only what it can give again.
func TestBufferPool(t *testing.T) {
	t.Parallel()
	var p bufferPool
	for _, n := range []int{0, 1, 1 << leastBuffer, 1<<leastBuffer + 1, 100_000, 1 << mostBuffer, 1<<mostBuffer + 1} {
		b := p.Get(n)
		if len(*b) != n || cap(*b) > max(2*n, 1<<leastBuffer) {
			t.Errorf("%d bytes: got %d of %d", n, len(*b), cap(*b))
		}
		p.Put(b)
		if b = p.Get(n); len(*b) != n {
			t.Errorf("%d bytes again: got %d", n, len(*b))
		}
	}
	odd := make([]byte, 3000)
	p.Put(&odd)
	if b := p.Get(4096); cap(*b) < 4096 {
		t.Errorf("got a buffer of %d", cap(*b))
	}
}

// Messages of every size come back as they were, from one buffer or from many; so do those of others.
func TestCodec(t *testing.T) {
	t.Parallel()
	c := New()
	for _, n := range []int{0, 1, 500, 2000, 40_000, 300_000, 5 << 20} {
		in := &carillonv1.GetRequest{Namespace: "n", Id: strings.Repeat("x", n)}
		data, err := c.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, parts := range []mem.BufferSlice{data, cut(data.Materialize(), 1000)} {
			var out carillonv1.GetRequest
			if err := c.Unmarshal(parts, &out); err != nil || out.GetId() != in.GetId() || out.GetNamespace() != "n" {
				t.Errorf("%d bytes: %v, an ID of %d", n, err, len(out.GetId()))
			}
		}
		data.Free()
	}
	data, err := c.Marshal(&healthv1.HealthCheckRequest{Service: "s"})
	if err != nil {
		t.Fatal(err)
	}
	var out healthv1.HealthCheckRequest
	if err := c.Unmarshal(data, &out); err != nil || out.GetService() != "s" {
		t.Errorf("a message of gRPC's own: %v, %v", &out, err)
	}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer{0xff}}, &carillonv1.GetRequest{}); err == nil {
		t.Error("damage is read as a message")
	}
}

func cut(b []byte, n int) (parts mem.BufferSlice) {
	for len(b) > n {
		parts, b = append(parts, mem.SliceBuffer(b[:n])), b[n:]
	}
	return append(parts, mem.SliceBuffer(b))
}
