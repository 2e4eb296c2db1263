//go:build ignore

// Command zonegen copies the time zone database of the Go distribution into this package, compressed, and notes its
// version.
package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "zonegen:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "lib", "time")
	script, err := os.ReadFile(filepath.Join(dir, "update.bash"))
	if err != nil {
		return err
	}
	version := regexp.MustCompile(`(?m)^DATA=(\w+)$`).FindSubmatch(script)
	if version == nil {
		return fmt.Errorf("%s does not say which release its data are", dir)
	}
	data, err := compress(filepath.Join(dir, "zoneinfo.zip"))
	if err != nil {
		return err
	}
	if err := os.WriteFile("zoneinfo.zip", data, 0o644); err != nil {
		return err
	}
	return os.WriteFile("zoneversion.txt", append(version[1], '\n'), 0o644)
}

// compress writes the archive again, deflated.
func compress(name string) ([]byte, error) {
	in, err := zip.OpenReader(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var buf bytes.Buffer
	out := zip.NewWriter(&buf)
	for _, f := range in.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		w, err := out.CreateHeader(&zip.FileHeader{Name: f.Name, Method: zip.Deflate})
		if err == nil {
			_, err = io.Copy(w, r)
		}
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil { // it writes the directory
		return nil, err
	}
	return buf.Bytes(), nil
}
