package segment

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"

	"github.com/hashicorp/raft"
)

// FuzzBatch reads batches of records whose checksums are right and whose fields are anything.
func FuzzBatch(f *testing.F) {
	f.Add(appendEntry(nil, 3, &raft.Log{Index: 9, Data: []byte("data"), Extensions: []byte("more")}))
	f.Add(appendRecord(nil, record{group: 1, kind: kindDelete, index: 3, term: math.MaxUint64}, nil, nil))
	f.Add(appendRecord(nil, record{group: 1, kind: kindEntry, index: math.MaxUint64}, nil, nil))
	f.Add(appendRecord(appendRecord(nil, record{group: 1, kind: kindSet}, []byte("key"), []byte("value")), record{group: 1, kind: kindForget}, nil, nil))
	f.Fuzz(func(t *testing.T, payload []byte) {
		const size = 4 << 10
		payload = bytes.Clone(payload[:min(len(payload), size-2*sector-batchHeader)])
		for at := 0; at+recordHeader <= len(payload); {
			b := payload[at:]
			length := int(binary.LittleEndian.Uint32(b[8:]))
			if length <= len(b)-recordHeader {
				binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[recordHeader:recordHeader+length], castagnoli))
			}
			stamp(b, binary.LittleEndian.Uint64(b[16:]))
			if length > len(b) {
				break
			}
			at += lengthOf(b)
		}
		s := segmentFile{number: 1, size: size, first: 1}
		image := make([]byte, size)
		copy(image, s.header([16]byte{}))
		h := batch{length: uint32(len(payload)), sequence: 1, sum: crc32.Checksum(payload, castagnoli)}
		h.put(image[sector:], s.seed)
		copy(image[sector+batchHeader:], payload)
		fs := newMemFS()
		fs.put(segmentName(1), image)
		if err := (manifest{1, 1}).write(fs); err != nil {
			t.Fatal(err)
		}
		l, err := Open("", Options{SegmentBytes: size, Logger: quietly, fs: fs})
		if err != nil {
			return
		}
		for _, g := range l.allGroups() {
			if _, err := read(g); err != nil && g.Err() == nil {
				t.Errorf("group %d: %v", g.id, err)
			}
		}
		_ = l.Close()
	})
}
