// Command gen compiles the .proto files of this repository and writes their Go code. It needs no protoc: the
// compiler is bufbuild/protocompile, the plugins are built from the module versions that go.mod pins.
//
// Run it from the proto/gen folder (`make proto` does); it has a go.mod of its own, so that the product does not
// depend on a compiler.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

const root = ".." // the proto folder, seen from proto/gen

var plugins = []struct{ pkg, parameter string }{
	{"google.golang.org/protobuf/cmd/protoc-gen-go", "paths=source_relative"},
	{"google.golang.org/grpc/cmd/protoc-gen-go-grpc", "paths=source_relative"},
	{"github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto", "paths=source_relative,features=marshal+unmarshal+size"},
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	files, err := protoFiles()
	if err != nil {
		return err
	}
	request, err := compile(ctx, files)
	if err != nil {
		return err
	}
	bin, err := os.MkdirTemp("", "gen")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	for _, p := range plugins {
		exe := filepath.Join(bin, filepath.Base(p.pkg))
		if err := command(ctx, nil, nil, "go", "build", "-o", exe, p.pkg); err != nil {
			return fmt.Errorf("build %s: %w", p.pkg, err)
		}
		request.Parameter = proto.String(p.parameter)
		if err := generate(ctx, exe, request); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(p.pkg), err)
		}
	}
	return nil
}

func protoFiles() ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".proto") {
			rel, relErr := filepath.Rel(root, path)
			files = append(files, filepath.ToSlash(rel))
			return relErr
		}
		return err
	})
	slices.Sort(files)
	return files, err
}

func compile(ctx context.Context, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	seen := map[string]bool{}
	var add func(fd protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) {
		if seen[fd.Path()] {
			return
		}
		seen[fd.Path()] = true
		for i := range fd.Imports().Len() {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(fd))
	}
	for _, fd := range compiled {
		add(fd)
	}
	return request, nil
}

func generate(ctx context.Context, exe string, request *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := command(ctx, in, &out, exe); err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out.Bytes(), &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, f := range response.File {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func command(ctx context.Context, in []byte, out *bytes.Buffer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	if out != nil {
		cmd.Stdout = out
	}
	return cmd.Run()
}
