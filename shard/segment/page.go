package segment

import "unsafe"

// page is what segments are written in, at its own multiples: a disk may have sectors of this length behind those of 512
// bytes that it shows, and would read what is left over of one before it writes.
const page = 4096

// pages rounds up to whole pages.
func pages(n int64) int64 { return (n + page - 1) &^ (page - 1) }

// aligned makes n zero bytes that begin at a multiple of a page in memory, from where a disk can take them.
func aligned(n int) []byte {
	b := make([]byte, n+page)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % page)
	return b[skip : skip+n : skip+n]
}

// zeroPage is never written.
var zeroPage = aligned(page)

// raw is an open file that is written past the page cache: all offsets, lengths and addresses are multiples of a sector,
// and what is written is, as a whole, pages.
type raw interface {
	// write writes the pieces one behind the other; with flush it returns when they are on the disk. A *refusedError says
	// that the system does not write like this, and that nothing was written.
	write(pieces [][]byte, at int64, flush bool) error
	Close() error
}

// pageWriter writes whole sectors as whole pages. Used by one goroutine at a time.
type pageWriter struct {
	raw raw
	// read reads the file; it is asked for the beginning of a page once, after the file was opened.
	read func(b []byte, at int64) (int, error)
	size int64
	// tail begins with what is written of the page at start, held bytes.
	tail  []byte
	start int64
	held  int
}

// write writes b, and around it what makes it whole pages: what was written before it, and zeros behind.
func (w *pageWriter) write(b []byte, at int64, flush bool) error {
	head := int(at % page)
	start, end := at-int64(head), at+int64(len(b))
	if head > 0 && (w.start != start || w.held < head) {
		if _, err := w.read(w.tail[:head], start); err != nil {
			return err
		}
	}
	w.start, w.held = start, head
	w.size = max(w.size, end)
	zeros := zeroPage[:min(pages(end), w.size)-end]
	pieces := make([][]byte, 0, 3)
	for _, piece := range [][]byte{w.tail[:head], b, zeros} {
		if len(piece) > 0 {
			pieces = append(pieces, piece)
		}
	}
	if err := w.raw.write(pieces, start, flush); err != nil {
		return err
	}
	switch last := end &^ (page - 1); {
	case last == end: // what comes next begins a page, or is in the place of this
	case last < at:
		w.held = head + copy(w.tail[head:], b)
	default:
		w.start, w.held = last, copy(w.tail, b[last-at:])
	}
	return nil
}
