package segment

// windowBytes is how much of a segment is read at once.
const windowBytes = 1 << 20

// window reads a file from its beginning to its end in large pieces.
type window struct {
	f     file
	size  int64
	buf   []byte
	start int64
}

// read returns n bytes that lie within the file; they are good until the next call.
func (w *window) read(at int64, n int) ([]byte, error) {
	if at < w.start || at+int64(n) > w.start+int64(len(w.buf)) {
		length := int(min(int64(max(n, windowBytes)), w.size-at))
		if cap(w.buf) < length {
			w.buf = make([]byte, length)
		}
		w.buf, w.start = w.buf[:length], at
		if _, err := w.f.ReadAt(w.buf, at); err != nil {
			w.buf = w.buf[:0]
			return nil, err
		}
	}
	at -= w.start
	return w.buf[at : int(at)+n : int(at)+n], nil
}
