package segment

import (
	"encoding/binary"
	"hash/crc32"
)

// A batch is what one write brings to the disk: a header and the records of one commit, filled with zeros to whole sectors,
// so that no batch shares a sector with another. The next batch is written when this one is flushed. A mark is a header
// alone, in the place of the next batch: it says that the batch before was flushed, and the next batch overwrites it.
//
//	0 magic  4 length of the records  8 sequence  16 checksum of the records  28 checksum of the header, seeded by the segment
const (
	// sector is what a disk writes whole.
	sector      = 512
	batchHeader = 32

	magicBatch = 0x31544243 // "CBT1"
	magicMark  = 0x314b4d43 // "CMK1"
)

type batch struct {
	mark     bool
	length   uint32
	sequence uint64
	sum      uint32
}

// sectors rounds up to whole sectors.
func sectors(n int) int { return (n + sector - 1) &^ (sector - 1) }

// span is how much of the segment the batch takes.
func (b *batch) span() int64 { return int64(sectors(batchHeader + int(b.length))) }

// put writes the header into the first bytes of b.
func (h *batch) put(b []byte, seed uint32) {
	magic := uint32(magicBatch)
	if h.mark {
		magic = magicMark
	}
	clear(b[:batchHeader])
	binary.LittleEndian.PutUint32(b, magic)
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint64(b[8:], h.sequence)
	binary.LittleEndian.PutUint32(b[16:], h.sum)
	binary.LittleEndian.PutUint32(b[28:], crc32.Update(seed, castagnoli, b[:28]))
}

// readBatch reads a header; false if there is none that was written into this segment.
func readBatch(b []byte, seed uint32, first uint64) (batch, bool) {
	if len(b) < batchHeader {
		return batch{}, false
	}
	magic := binary.LittleEndian.Uint32(b)
	if magic != magicBatch && magic != magicMark || crc32.Update(seed, castagnoli, b[:28]) != binary.LittleEndian.Uint32(b[28:]) {
		return batch{}, false
	}
	h := batch{
		mark: magic == magicMark, length: binary.LittleEndian.Uint32(b[4:]), sequence: binary.LittleEndian.Uint64(b[8:]),
		sum: binary.LittleEndian.Uint32(b[16:]),
	}
	// What a recycled segment holds of its former life is older than its first batch.
	return h, h.sequence >= first && (!h.mark || h.length == 0)
}

// batchLength is the length of the records of a batch whose header was read.
func batchLength(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:]) }
