package transport

import (
	"google.golang.org/grpc/mem"

	"github.com/carillon-timers/carillon/proto/codec"
)

// rawCodec is the codec of both ends, and leaves messages as they are that are to be decoded later.
type rawCodec struct{ codec.Codec }

func newCodec() rawCodec { return rawCodec{codec.New()} }

// Unmarshal implements encoding.CodecV2.
func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*rawMessage); ok {
		data.Ref()
		raw.data = data
		return nil
	}
	return c.Codec.Unmarshal(data, v)
}
