package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The rules of the house: which package may import which, and how the code is laid out. They are a test because a
// rule that nothing checks is gone within a year.

const module = "github.com/carillon-timers/carillon"

// mayImport lists, for each of our packages, the packages of ours that it may import. Imports only go down.
var mayImport = map[string][]string{
	"cmd/carillon":             {"node", "client", "proto/carillon/v1"},
	"client":                   {"proto/carillon/v1", "proto/codec"},
	"node":                     {"transport", "transport/peer", "transport/webhook", "shard", "shard/ring", "shard/executor", "shard/segment", "raftfsm", "proto/carillon/v1", "proto/carillonlog/v1"},
	"transport":                {"shard", "shard/executor", "shard/recur", "raftfsm", "proto/carillon/v1", "proto/carillonlog/v1", "proto/codec"},
	"transport/peer":           {},
	"transport/webhook":        {"shard", "shard/executor", "raftfsm", "proto/carillonlog/v1"},
	"transport/peer/peertest":  {"transport/peer"},
	"shard":                    {"shard/executor", "shard/recur", "raftfsm", "wheel", "proto/carillonlog/v1"},
	"shard/segment":            {},
	"shard/recur":              {},
	"shard/ring":               {"proto/carillon/v1"},
	"shard/executor":           {"raftfsm", "wheel", "wheel/mpsc", "proto/carillonlog/v1"},
	"raftfsm":                  {"wheel", "proto/carillonlog/v1"},
	"wheel":                    {},
	"wheel/mpsc":               {},
	"proto/carillon/v1":        {},
	"proto/carillonlog/v1":     {},
	"proto/codec":              {"proto/carillon/v1"},
	"jepsen-lite":              {"client", "jepsen-lite/local"},
	"jepsen-lite/local":        {},
	"jepsen-lite/benchcluster": {"client", "jepsen-lite/local", "proto/carillon/v1"}, // a flood is raw calls: the SDK would hold back
	"deploy":                   {"client"},
}

// mayNotReach lists what a package must not depend on, however far down, and why.
var mayNotReach = []struct{ from, to, why string }{
	{"client", "github.com/hashicorp/raft", "users link the SDK: it must not bring a consensus library along"},
	{"client", "go.etcd.io/bbolt", "users link the SDK: it must not bring a database along"},
	{"client", "github.com/hashicorp/memberlist", "users link the SDK: it must not bring a gossip library along"},
	{"client", module + "/shard", "the SDK knows the contract alone"},
	{"raftfsm", "github.com/hashicorp/raft", "the core is tested without a cluster"},
	{"raftfsm", "google.golang.org/grpc", "Apply must be deterministic: nothing that talks"},
	{"raftfsm", module + "/transport", "imports only go down"},
	{"wheel", "github.com/hashicorp/raft", "the wheel is pure"},
	{"shard", module + "/transport", "delivery comes in as an interface"},
	{"transport", "github.com/hashicorp/memberlist", "only node knows members"},
}

// mayReadClock lists the files outside of tests that may name time.Now. All others get the time as a value.
var mayReadClock = map[string]string{
	"cmd/carillon/":                   "the shell sets Now",
	"jepsen-lite/":                    "it times real processes from outside",
	"node/":                           "node sets Now for all below it",
	"client/":                         "the SDK runs in the user's process",
	"shard/shard.go":                  "the default of Deps",
	"shard/executor/options.go":       "the default of LoopOptions",
	"shard/executor/sleeper_linux.go": "it learns how late the system wakes it",
	"transport/peer/clock.go":         "deadlines of sockets are kept by the real clock",
	"transport/peer/peertest/conn.go": "as above, for the network in memory",
}

// mayStart lists the files outside of tests that may have a go statement: each has a waiter of its own.
var mayStart = map[string]string{
	"jepsen-lite/":   "it waits for the processes and the workload by channel",
	"shard/reads.go": "ends with the call that started it",
	"shard/run.go":   "waits for what may hang (a disk), under a limit: it may outlive its caller, and that is the point",
}

type listed struct {
	ImportPath, Dir string
	Imports, Deps   []string
	GoFiles         []string
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,Deps,GoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestImportsOnlyGoDown(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if len(p.GoFiles) == 0 {
			continue
		}
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %s is not in the tree that mayImport lists", name)
			continue
		}
		for _, imported := range p.Imports {
			ours, isOurs := strings.CutPrefix(imported, module+"/")
			if isOurs && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s: not an arrow of the tree", name, ours)
			}
		}
		for _, rule := range mayNotReach {
			if name != rule.from {
				continue
			}
			for _, dep := range p.Deps {
				if dep == rule.to || strings.HasPrefix(dep, rule.to+"/") {
					t.Errorf("%s reaches %s: %s", name, dep, rule.why)
				}
			}
		}
	}
}

// file is one parsed Go file of ours.
type file struct {
	path string // from the root, with slashes
	set  *token.FileSet
	ast  *ast.File
}

func (f file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(n.Pos()).Line)
}

func parseAll(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || hasOwnModule(path)) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, file{filepath.ToSlash(strings.TrimPrefix(path, "../")), set, parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// hasOwnModule tells whether a folder is a module of its own: the product does not depend on it.
func hasOwnModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

const (
	maxFunctionLines = 70
	maxFileLines     = 500
)

func TestSizesAndDocs(t *testing.T) {
	t.Parallel()
	documented := map[string]bool{}
	for _, f := range parseAll(t) {
		dir := filepath.Dir(f.path)
		documented[dir] = documented[dir] || f.ast.Doc != nil || f.test()
		if lines := f.set.Position(f.ast.FileEnd).Line; lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d: find the second job in it", f.path, lines, maxFileLines)
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1
			if lines > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, at most %d", f.at(fn), fn.Name.Name, lines, maxFunctionLines)
			}
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no doc comment", dir)
		}
	}
}

func TestClockAndGoroutines(t *testing.T) {
	t.Parallel()
	for _, f := range parseAll(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				if !f.test() && !allowed(mayStart, f.path) {
					t.Errorf("%s: a bare go statement: use a type with Run and sync.WaitGroup.Go", f.at(n))
				}
			case *ast.SelectorExpr:
				pkg, ok := n.X.(*ast.Ident)
				if !ok || pkg.Name != "time" {
					break
				}
				if n.Sel.Name == "Now" && !f.test() && !allowed(mayReadClock, f.path) {
					t.Errorf("%s: reads the clock: take the time as a value, or add the file with a reason", f.at(n))
				}
			}
			return true
		})
	}
}

func allowed(list map[string]string, path string) bool {
	for prefix := range list {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
