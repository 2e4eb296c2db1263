package node

import (
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A test sleeps in a bubble of synctest only, where the time is fake. The check follows calls by name within a package: what is
// handed to synctest.Test, or to a function that calls it, runs in a bubble; from everywhere else no sleep may be reached.

// mayPoll lists the tests that wait for real disks, with the reason.
var mayPoll = map[string]string{
	"TestBoltFiles":    "bolt flushes real files, which takes real time",
	"BenchmarkPropose": "it measures the same",
}

// testCode is what the test files of one package declare: the bodies by name, methods among them.
type testCode map[string][]ast.Node

func TestSleepsInBubblesOnly(t *testing.T) {
	t.Parallel()
	packages := map[string]testCode{}
	for _, f := range parseAll(t) {
		if !f.test() {
			continue
		}
		key := filepath.Dir(f.path) + " " + f.ast.Name.Name
		if packages[key] == nil {
			packages[key] = testCode{}
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				packages[key][fn.Name.Name] = append(packages[key][fn.Name.Name], fn.Body)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(packages)) {
		for _, name := range packages[key].sleepers() {
			if mayPoll[name] == "" {
				t.Errorf("%s: %s sleeps outside of a synctest bubble", key, name)
			}
		}
	}
}

// sleepers lists the tests, benchmarks and fuzz targets that reach a sleep outside of a bubble.
func (c testCode) sleepers() []string {
	bubbles := c.reaching(func(n ast.Node) bool { return calls(n, "synctest", "Test") }, nil)
	sleeping := c.reaching(func(n ast.Node) bool { return calls(n, "time", "Sleep") }, bubbles)
	var names []string
	for name := range sleeping {
		if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Benchmark") || strings.HasPrefix(name, "Fuzz") {
			names = append(names, name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// reaching is the functions from which a node of a kind can be reached. What is handed to a function in bubbles, or to
// synctest.Test, is not followed if bubbles is not nil.
func (c testCode) reaching(found func(ast.Node) bool, bubbles map[string]bool) map[string]bool {
	reached := map[string]bool{}
	for grown := true; grown; {
		grown = false
		for name, bodies := range c {
			if reached[name] {
				continue
			}
			for _, body := range bodies {
				if c.reaches(body, found, reached, bubbles) {
					reached[name], grown = true, true
				}
			}
		}
	}
	return reached
}

func (c testCode) reaches(body ast.Node, found func(ast.Node) bool, reached, bubbles map[string]bool) (yes bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, isCall := n.(*ast.CallExpr)
		if isCall && bubbles != nil && (calls(n, "synctest", "Test") || bubbles[nameOf(call.Fun)]) {
			return false
		}
		yes = yes || found(n) || isCall && slices.ContainsFunc(append(call.Args, call.Fun), func(e ast.Expr) bool { return reached[nameOf(e)] })
		return !yes
	})
	return yes
}

func calls(n ast.Node, pkg, name string) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// nameOf is the name of a function or method that is called or handed on; empty for other expressions.
func nameOf(e ast.Expr) string {
	switch f := e.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.IndexExpr:
		return nameOf(f.X)
	}
	return ""
}
