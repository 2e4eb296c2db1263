//go:build !linux

package segment

import (
	"errors"
	"os"
)

func dataSync(f *os.File) error { return f.Sync() }

func openRaw(string) (raw, error) { return nil, errors.ErrUnsupported }
