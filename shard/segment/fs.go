package segment

import (
	"errors"
	"os"
	"path/filepath"
)

// file is an open file of the log.
type file interface {
	ReadAt(b []byte, at int64) (int, error)
	// WriteAt and WriteSync write whole sectors of a segment. Behind them, as far as the page goes that the last is in,
	// there may be zeros then. WriteSync brings them to the disk, too; it fails in one or the other.
	WriteAt(b []byte, at int64) (int, error)
	WriteSync(b []byte, at int64) error
	// Sync brings what was written to the disk, not its times.
	Sync() error
	Size() (int64, error)
	Close() error
}

// fileSystem is the folder of the log; tests put one in its place that records, fails and crashes.
type fileSystem interface {
	List() ([]string, error)
	Open(name string) (file, error)
	// Create makes an empty file; one that is there is emptied.
	Create(name string) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir brings names that were made, changed and removed to the disk.
	SyncDir() error
}

// folder is the fileSystem of the operating system.
type folder string

// openFolder makes the folder, if need be, so that it is still there after a crash.
func openFolder(dir string) (folder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return folder(dir), syncFolder(filepath.Dir(dir))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (d folder) path(name string) string { return filepath.Join(string(d), name) }

func (d folder) List() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d folder) Open(name string) (file, error) { return d.open(name, os.O_RDWR) }

func (d folder) Create(name string) (file, error) {
	return d.open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (d folder) open(name string, flag int) (file, error) {
	f, err := os.OpenFile(d.path(name), flag, 0o600)
	if err != nil {
		return nil, err
	}
	all := &osFile{File: f}
	if name == ManifestFile || name == freshFile {
		return all, nil
	}
	size, err := all.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if direct, err := openRaw(d.path(name)); err == nil {
		all.pages = &pageWriter{raw: direct, read: f.ReadAt, size: size, tail: aligned(page)}
	}
	return all, nil
}

func (d folder) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d folder) Remove(name string) error { return os.Remove(d.path(name)) }

func (d folder) SyncDir() error { return syncFolder(string(d)) }

// osFile reads through the page cache. A segment is written past it, in whole pages, where the system does that; then no write
// goes through the cache, for the two do not go together.
type osFile struct {
	*os.File
	// pages is nil if writes go through the cache. Touched by who writes.
	pages *pageWriter
}

// refusedError says that a file cannot be written past the page cache.
type refusedError struct{ cause error }

func (e *refusedError) Error() string { return "write past the page cache: " + e.cause.Error() }

func (e *refusedError) Unwrap() error { return e.cause }

// direct writes past the page cache; false if that cannot be, and nothing was written.
func (f *osFile) direct(b []byte, at int64, flush bool) (bool, error) {
	if f.pages == nil {
		return false, nil
	}
	err := f.pages.write(b, at, flush)
	if refused := new(refusedError); !errors.As(err, &refused) {
		return true, err
	}
	err = f.pages.raw.Close()
	f.pages = nil
	return err != nil, err
}

func (f *osFile) WriteAt(b []byte, at int64) (int, error) {
	if done, err := f.direct(b, at, false); done {
		return len(b), err
	}
	return f.File.WriteAt(b, at)
}

func (f *osFile) WriteSync(b []byte, at int64) error {
	if done, err := f.direct(b, at, true); done {
		return err
	}
	if _, err := f.File.WriteAt(b, at); err != nil {
		return err
	}
	return f.Sync()
}

func (f *osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f *osFile) Sync() error { return dataSync(f.File) }

func (f *osFile) Close() error {
	err := f.File.Close()
	if f.pages != nil {
		err = errors.Join(err, f.pages.raw.Close())
	}
	return err
}
