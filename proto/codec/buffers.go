package codec

import (
	"math/bits"
	"sync"
)

// Sizes of the buffers that are kept, as powers of two: 2 KiB to 4 MiB. Others are made and forgotten.
const (
	leastBuffer = 11
	mostBuffer  = 22
)

// bufferPool implements mem.BufferPool. gRPC's own has nothing between 32 KiB and 1 MiB, and clears what it hands out to its
// full size, so a batch of 64 KiB would cost as much as one of 1 MiB. These hold what they held before: a user
// of them writes each byte of the length that it asked for.
type bufferPool struct {
	sizes [mostBuffer + 1]sync.Pool // of *[]byte with a capacity of 1<<i
}

var buffers bufferPool

// Get implements mem.BufferPool.
func (p *bufferPool) Get(length int) *[]byte {
	i := max(leastBuffer, bits.Len(uint(max(length, 1)-1)))
	if i > mostBuffer {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.sizes[i].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<i)
	return &b
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(b *[]byte) {
	if i := bits.Len(uint(cap(*b))) - 1; i >= leastBuffer && i <= mostBuffer && cap(*b) == 1<<i {
		p.sizes[i].Put(b)
	}
}
