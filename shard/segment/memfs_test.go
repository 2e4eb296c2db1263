package segment

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// memFS is a folder in memory that knows what of it is on the disk. What was written and not flushed may be there after a
// crash or not, sector by sector, and in any of the versions that were written since the last flush; names that were not
// flushed likewise, one by one.
type memFS struct {
	mu sync.Mutex
	// All below is guarded by mu.
	files   map[string]*memFile // what the process sees
	disk    map[string]*memFile // what is flushed
	changes []func(disk map[string]*memFile)
	// fault may fail an operation: write, sync, create, rename, remove or syncdir.
	fault func(op, name string) error
	// crashed is called after each operation, with mu held.
	crashed func()
	// pages says that segments are written in whole pages: the sectors before again, and zeros behind. Set before sharing.
	pages bool
}

type memFile struct {
	fs      *memFS
	data    []byte
	synced  []byte
	pending map[int][][]byte // versions of a sector since the last flush
}

func newMemFS() *memFS { return &memFS{files: map[string]*memFile{}, disk: map[string]*memFile{}} }

func (m *memFS) try(op, name string) error {
	if m.fault != nil {
		return m.fault(op, name)
	}
	return nil
}

func (m *memFS) done() {
	if m.crashed != nil {
		m.crashed()
	}
}

func (m *memFS) List() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.files)), nil
}

func (m *memFS) Open(name string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return f, nil
}

func (m *memFS) Create(name string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.try("create", name); err != nil {
		return nil, err
	}
	f := &memFile{fs: m, pending: map[int][][]byte{}}
	m.files[name] = f
	m.changes = append(m.changes, func(disk map[string]*memFile) { disk[name] = f })
	m.done()
	return f, nil
}

func (m *memFS) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.try("rename", from); err != nil {
		return err
	}
	f := m.files[from]
	delete(m.files, from)
	m.files[to] = f
	m.changes = append(m.changes, func(disk map[string]*memFile) {
		delete(disk, from)
		disk[to] = f
	})
	m.done()
	return nil
}

func (m *memFS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.try("remove", name); err != nil {
		return err
	}
	delete(m.files, name)
	m.changes = append(m.changes, func(disk map[string]*memFile) { delete(disk, name) })
	m.done()
	return nil
}

func (m *memFS) SyncDir() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.try("syncdir", ""); err != nil {
		return err
	}
	m.disk, m.changes = maps.Clone(m.files), nil
	m.done()
	return nil
}

func (f *memFile) ReadAt(b []byte, at int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if at < 0 || at+int64(len(b)) > int64(len(f.data)) {
		return 0, errors.New("read beyond the end")
	}
	return copy(b, f.data[at:]), nil
}

func (f *memFile) WriteAt(b []byte, at int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.try("write", ""); err != nil {
		return 0, err
	}
	n := len(b)
	if f.fs.pages && at%sector == 0 && len(b)%sector == 0 {
		head := at % page
		b = slices.Concat(f.data[at-head:at], b)
		at -= head
		if end := at + int64(len(b)); end < int64(len(f.data)) {
			b = append(b, make([]byte, min(pages(end), int64(len(f.data)))-end)...)
		}
	}
	if grown := int(at) + len(b); grown > len(f.data) {
		f.data = append(f.data, make([]byte, grown-len(f.data))...)
	}
	copy(f.data[at:], b)
	for s := int(at) / sector; s*sector < int(at)+len(b); s++ {
		f.pending[s] = append(f.pending[s], slices.Clone(f.data[s*sector:min((s+1)*sector, len(f.data))]))
	}
	f.fs.done()
	return n, nil
}

func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.try("sync", ""); err != nil {
		f.pending = map[int][][]byte{} // the process sees these pages on; no later flush writes them
		return err
	}
	f.synced = f.image(func(n int) int { return n - 1 })
	f.pending = map[int][][]byte{}
	f.fs.done()
	return nil
}

func (f *memFile) WriteSync(b []byte, at int64) error {
	if _, err := f.WriteAt(b, at); err != nil {
		return err
	}
	return f.Sync()
}

func (f *memFile) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *memFile) Close() error { return nil }

// image is what a crash leaves: choose picks one of n possibilities for each sector and name that was not flushed. It is
// called with mu held.
func (m *memFS) image(choose func(n int) int) *memFS {
	disk := maps.Clone(m.disk)
	for _, change := range m.changes {
		if choose(2) == 1 {
			change(disk)
		}
	}
	after := newMemFS()
	after.pages = m.pages
	for _, name := range slices.Sorted(maps.Keys(disk)) {
		after.put(name, disk[name].image(choose))
	}
	return after
}

// image is one of the contents that the file may have after a crash.
func (f *memFile) image(choose func(n int) int) []byte {
	b := slices.Clone(f.synced)
	for _, s := range slices.Sorted(maps.Keys(f.pending)) {
		k := choose(1 + len(f.pending[s]))
		if k == 0 {
			continue
		}
		version := f.pending[s][k-1]
		if end := s*sector + len(version); end > len(b) {
			b = append(b, make([]byte, end-len(b))...)
		}
		copy(b[s*sector:], version)
	}
	return b
}

// put sets a file, on the disk.
func (m *memFS) put(name string, content []byte) {
	f := &memFile{fs: m, data: slices.Clone(content), synced: content, pending: map[int][][]byte{}}
	m.files[name], m.disk[name] = f, f
}

// copyOf is the folder as the process sees it.
func (m *memFS) copyOf() *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := newMemFS()
	for name, f := range m.files {
		after.put(name, slices.Clone(f.data))
	}
	return after
}

// images calls each with every image if there are at most limit, else with limit of them: the first all or none, or all
// but one piece, the rest drawn.
func (m *memFS) images(limit int, rnd *rand.Rand, each func(*memFS)) {
	var radix []int
	m.image(func(n int) int { radix = append(radix, n); return n - 1 })
	total := 1
	for _, n := range radix {
		if total *= n; total > limit {
			break
		}
	}
	digits := make([]int, len(radix))
	next := func() func(int) int {
		k := -1
		return func(n int) int {
			if k++; k < len(digits) {
				return digits[k] % n // fewer files are there if names are missing
			}
			return 0
		}
	}
	if total <= limit {
		for range total {
			each(m.image(next()))
			for i := range digits {
				if digits[i]++; digits[i] < radix[i] {
					break
				}
				digits[i] = 0
			}
		}
		return
	}
	for i := range limit {
		for k, n := range radix {
			switch {
			case i == 0:
				digits[k] = 0
			case i == 1:
				digits[k] = n - 1
			case i < limit/2: // all but one
				digits[k] = n - 1
				if k == i%len(radix) {
					digits[k] = 0
				}
			default:
				digits[k] = rnd.IntN(n)
			}
		}
		each(m.image(next()))
	}
}

// Both versions of a sector, and both of a name, are seen.
func TestImages(t *testing.T) {
	t.Parallel()
	m := newMemFS()
	f, _ := m.Create("a")
	_, _ = f.WriteAt(make([]byte, 2*sector), 0)
	_ = f.Sync()
	_ = m.SyncDir()
	_, _ = f.WriteAt([]byte{1}, 0)
	_, _ = f.WriteAt([]byte{2}, 0)
	_, _ = f.WriteAt([]byte{3}, sector)
	_ = m.Rename("a", "b")
	seen := map[[3]byte]int{}
	m.images(100, nil, func(after *memFS) {
		for name, f := range after.files {
			seen[[3]byte{name[0], f.data[0], f.data[sector]}]++
		}
	})
	if len(seen) != 2*3*2 {
		t.Errorf("%d images: %v", len(seen), seen)
	}
}
