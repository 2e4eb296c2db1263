package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync/atomic"
)

const (
	segmentMagic  = "CRLNSEG1"
	manifestMagic = "CRLNMAN1"
	version       = 1
	suffix        = ".seg"
	freshFile     = "manifest.new"
	spareFile     = "spare"
	// fillBytes is how much of a new segment is filled and flushed at once.
	fillBytes = 1 << 20
)

// ManifestFile is in the folder of every log that was opened to the end once.
const ManifestFile = "manifest"

func segmentName(number uint32) string { return fmt.Sprintf("%010d%s", number, suffix) }

// segmentNumber is the number of a segment's file; false for another file.
func segmentNumber(name string) (uint32, bool) {
	var number uint32
	if !strings.HasSuffix(name, suffix) {
		return 0, false
	}
	_, err := fmt.Sscanf(name, "%010d"+suffix, &number)
	return number, err == nil && name == segmentName(number)
}

// segmentFile is an open segment. All but the counters is set before sharing.
type segmentFile struct {
	file
	number uint32
	size   int64
	// first is the sequence of the first batch: all before lie in the segments before.
	first uint64
	seed  uint32
	// live counts the records that are still needed, bytes their lengths. Written by the committer.
	live, bytes atomic.Int64
	// users counts the reads that are under way. Guarded by Log.mu.
	users int
}

// header is the first sector of a segment.
//
//	0 magic  8 version  12 number  16 size  24 first batch  32 salt  48 checksum
func (s *segmentFile) header(salt [16]byte) []byte {
	b := aligned(sector)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], s.number)
	binary.LittleEndian.PutUint64(b[16:], uint64(s.size))
	binary.LittleEndian.PutUint64(b[24:], s.first)
	copy(b[32:], salt[:])
	s.seed = crc32.Checksum(b[:48], castagnoli)
	binary.LittleEndian.PutUint32(b[48:], s.seed)
	return b
}

// openSegment opens a segment and reads its header; what is wrong with it is a *DamagedError.
func openSegment(fs fileSystem, number uint32) (*segmentFile, error) {
	name := segmentName(number)
	f, err := fs.Open(name)
	if err != nil {
		return nil, &DamagedError{name, err}
	}
	s := &segmentFile{file: f, number: number}
	if err := s.readHeader(); err != nil {
		return nil, errors.Join(&DamagedError{name, err}, f.Close())
	}
	return s, nil
}

func (s *segmentFile) readHeader() error {
	b := make([]byte, sector)
	if _, err := s.ReadAt(b, 0); err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	length, err := s.Size()
	if err != nil {
		return err
	}
	s.seed = crc32.Checksum(b[:48], castagnoli)
	s.size, s.first = int64(binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint64(b[24:])
	switch {
	case string(b[:8]) != segmentMagic || binary.LittleEndian.Uint32(b[48:]) != s.seed:
		return errors.New("the header has a wrong checksum")
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return fmt.Errorf("version %d; this program reads version %d", binary.LittleEndian.Uint32(b[8:]), version)
	case binary.LittleEndian.Uint32(b[12:]) != s.number:
		return fmt.Errorf("it is segment %d", binary.LittleEndian.Uint32(b[12:]))
	case length != s.size:
		return fmt.Errorf("it has %d bytes of %d", length, s.size)
	}
	return nil
}

// manifest says which segments there must be, so that one that is missing at either end is seen.
type manifest struct{ oldest, newest uint32 }

// readManifest reads the manifest; there is none in a folder that was never opened to the end.
func readManifest(fs fileSystem) (manifest, error) {
	f, err := fs.Open(ManifestFile)
	if err != nil {
		return manifest{}, &DamagedError{ManifestFile, err}
	}
	b := make([]byte, 24)
	n, err := f.Size()
	if err == nil && n != int64(len(b)) {
		err = fmt.Errorf("it has %d bytes of %d", n, len(b))
	}
	if err == nil {
		_, err = f.ReadAt(b, 0)
	}
	m := manifest{binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])}
	switch {
	case err != nil:
	case string(b[:8]) != manifestMagic || crc32.Checksum(b[:20], castagnoli) != binary.LittleEndian.Uint32(b[20:]):
		err = errors.New("wrong checksum")
	case binary.LittleEndian.Uint32(b[8:]) != version:
		err = fmt.Errorf("version %d; this program reads version %d", binary.LittleEndian.Uint32(b[8:]), version)
	case m.oldest == 0 || m.oldest > m.newest:
		err = fmt.Errorf("segments %d to %d", m.oldest, m.newest)
	}
	if err != nil {
		err = &DamagedError{ManifestFile, err}
	}
	if closed := f.Close(); closed != nil {
		err = errors.Join(err, closed)
	}
	return m, err
}

// write brings the manifest to the disk: after a crash the old one or the new one is there.
func (m manifest) write(fs fileSystem) error {
	b := make([]byte, 24)
	copy(b, manifestMagic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], m.oldest)
	binary.LittleEndian.PutUint32(b[16:], m.newest)
	binary.LittleEndian.PutUint32(b[20:], crc32.Checksum(b[:20], castagnoli))
	f, err := fs.Create(freshFile)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(freshFile, ManifestFile); err != nil {
		return err
	}
	return fs.SyncDir()
}
