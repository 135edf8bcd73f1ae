package house

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// outside are the packages of the standard library through which a program
// touches the world; harmless are those below them that don't, and net/http for
// the names of methods and statuses.
var (
	outside  = []string{"context", "database/sql", "io/ioutil", "log", "math/rand", "net", "os", "path/filepath", "plugin", "syscall"}
	harmless = []string{"net/http", "net/netip", "net/url"}
)

// clock are the functions of package time that read the clock or wait for it.
var clock = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// policyIsPure finds I/O, clock and goroutines in package policy.
func policyIsPure(m *module) []finding {
	var findings []finding
	for _, f := range m.files(func(f *file) bool { return production(f) && f.pkg.dir == "policy" }) {
		imports := f.importNames()
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if what := impure(n, imports); what != "" {
				findings = append(findings, finding{f.path, what + "; policy is a function of its arguments"})
			}
			return true
		})
	}
	return findings
}

// impure says how the node reaches beyond its arguments, or nothing.
func impure(n ast.Node, imports map[string]string) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "starts a goroutine"
	case *ast.ImportSpec:
		path := strings.Trim(n.Path.Value, `"`)
		if slices.ContainsFunc(outside, func(o string) bool { return below(path, o) }) && !slices.Contains(harmless, path) {
			return "imports " + path
		}
	case *ast.SelectorExpr:
		path, name := selected(n, imports)
		if path == "time" && slices.Contains(clock, name) {
			return "looks at the clock by time." + name
		}
		if path == "net/http" && !strings.HasPrefix(name, "Method") && !strings.HasPrefix(name, "Status") {
			return "uses http." + name
		}
	}
	return ""
}

// nothingSleeps finds waits that no context ends: time.Sleep in production
// code, and in the tests of packages that know no virtual time. Whether each
// sleep of the others is inside a bubble it can't tell.
func nothingSleeps(m *module) []finding {
	virtual := map[*pkg]bool{}
	m.eachImport(func(f *file, importPath string) {
		virtual[f.pkg] = virtual[f.pkg] || importPath == "testing/synctest"
	})
	var findings []finding
	for _, f := range m.files(everyFile) {
		imports := f.importNames()
		if !production(f) && virtual[f.pkg] {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if path, name := selected(e, imports); path == "time" && name == "Sleep" {
					findings = append(findings, finding{f.path, "sleeps; wait for an event or a context, in tests with testing/synctest"})
				}
			}
			return true
		})
	}
	return findings
}

// noTestSkipped finds Skip, Skipf and SkipNow: a test that does not run where
// it should must fail. A property of rapid may pass over an input.
func noTestSkipped(m *module) []finding {
	var findings []finding
	for _, f := range m.files(func(f *file) bool { return !production(f) }) {
		imports := f.importNames()
		f.functions(func(d *ast.FuncDecl) {
			ast.Inspect(d, func(n ast.Node) bool {
				if skips(n) {
					findings = append(findings, finding{f.pkg.dir + "." + funcName(d), "skips; a test that can't run must fail"})
				}
				return !property(n, imports)
			})
		})
	}
	return findings
}

// skips reports whether the node is a call of Skip on a test by its usual
// names.
func skips(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && strings.HasPrefix(sel.Sel.Name, "Skip") && slices.Contains([]string{"t", "b", "f", "tb"}, identName(sel.X))
}

// property reports whether the node is a function of a *rapid.T.
func property(n ast.Node, imports map[string]string) bool {
	fn, ok := n.(*ast.FuncLit)
	return ok && slices.ContainsFunc(fn.Type.Params.List, func(p *ast.Field) bool {
		pointer, ok := p.Type.(*ast.StarExpr)
		if !ok {
			return false
		}
		path, _ := selected(pointer.X, imports)
		return path == "pgregory.net/rapid"
	})
}

// identName is the name of an identifier, or empty.
func identName(e ast.Expr) string {
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

func TestPolicyIsPure(t *testing.T) {
	const read = "package policy\n\nimport \"os\"\n\nvar text, _ = os.ReadFile(\"a\")\n"
	try(t, policyIsPure, []trial{
		{"values", one("policy/a.go", "package policy\n\nimport (\n\t\"net/url\"\n\t\"time\"\n)\n\nfunc f(url.Values, time.Time) time.Duration { return time.Second }\n"), nil},
		{"a file", one("policy/a.go", read), []string{"policy/a.go"}},
		{"a file in a test", one("policy/a_test.go", read), nil},
		{"a file elsewhere", one("proxy/a.go", strings.Replace(read, "package policy", "package proxy", 1)), nil},
		{"the network", importing("policy/a.go", "policy", "net"), []string{"policy/a.go"}},
		{"a client", one("policy/a.go", "package policy\n\nimport \"net/http\"\n\nvar get = http.Get\n"), []string{"policy/a.go"}},
		{"a status", one("policy/a.go", "package policy\n\nimport \"net/http\"\n\nconst gone = http.StatusGone\n"), nil},
		{"the clock", one("policy/a.go", "package policy\n\nimport \"time\"\n\nfunc f() time.Time { return time.Now() }\n"), []string{"policy/a.go"}},
		{"the clock by another name", one("policy/a.go", "package policy\n\nimport t \"time\"\n\nvar now = t.Now\n"), []string{"policy/a.go"}},
		{"a goroutine", one("policy/a.go", "package policy\n\nfunc f() { go f() }\n"), []string{"policy/a.go"}},
	})
}

func TestNothingSleeps(t *testing.T) {
	const sleep = "package proxy\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"
	const virtual = "package proxy\n\nimport _ \"testing/synctest\"\n"
	try(t, nothingSleeps, []trial{
		{"production code", one("proxy/a.go", sleep), []string{"proxy/a.go"}},
		{"a test", one("proxy/a_test.go", sleep), []string{"proxy/a_test.go"}},
		{"a test in virtual time", map[string]string{"proxy/a_test.go": sleep, "proxy/b_test.go": virtual}, nil},
		{"production code with such a test", map[string]string{"proxy/a.go": sleep, "proxy/b_test.go": virtual}, []string{"proxy/a.go"}},
		{"a sleep of our own", one("proxy/a.go", "package proxy\n\ntype time struct{}\n\nfunc (time) Sleep(int) {}\n"), nil},
	})
}

func TestNoTestSkipped(t *testing.T) {
	const skips = "package proxy\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {\n\tt.Run(\"b\", func(t *testing.T) { t.Skipf(\"no %s\", \"redis\") })\n}\n"
	try(t, noTestSkipped, []trial{
		{"a test that skips", one("proxy/a_test.go", skips), []string{"proxy.TestA"}},
		{"a suite that skips", one("limits/ledgertest/a.go", strings.Replace(skips, "package proxy", "package ledgertest", 1)), []string{"limits/ledgertest.TestA"}},
		{"a property that passes over an input", one("proxy/a_test.go", "package proxy\n\nimport \"pgregory.net/rapid\"\n\nfunc TestA(t *testing.T) {\n\trapid.Check(t, func(t *rapid.T) { t.Skip() })\n}\n"), nil},
		{"a test that runs", one("proxy/a_test.go", strings.Replace(skips, "Skipf", "Logf", 1)), nil},
		{"a skip of something else", one("proxy/a.go", "package proxy\n\nfunc f(r interface{ Skip() }) { r.Skip() }\n"), nil},
	})
}
