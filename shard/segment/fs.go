package segment

import (
	"errors"
	"os"
	"path/filepath"
)

// file is an open file of the log. Sync brings what was written to the disk, not its times.
type file interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
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

func (d folder) Open(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d folder) Create(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d folder) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d folder) Remove(name string) error { return os.Remove(d.path(name)) }

func (d folder) SyncDir() error { return syncFolder(string(d)) }

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error { return dataSync(f.File) }
