package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// The sizes of things, in lines. A function counts from its first line to its
// closing brace; literal tables in it are data and don't count.
const (
	functionMax    = 80
	functionMedian = 12
	functionP90    = 40
	fileMax        = 500
	exportedMax    = 25 // top-level names of a package, methods left out
)

// functionsShort finds functions over functionMax, tests among them.
func functionsShort(m *module) []finding {
	var findings []finding
	for _, f := range m.files(everyFile) {
		f.functions(func(d *ast.FuncDecl) {
			if n := m.length(d); n > functionMax {
				findings = append(findings, finding{f.pkg.dir + "." + funcName(d), fmt.Sprintf("has %d lines, want at most %d", n, functionMax)})
			}
		})
	}
	return findings
}

// length is the number of lines of a function without its tables.
func (m *module) length(n ast.Node) int {
	lines := m.span(n)
	ast.Inspect(n, func(n ast.Node) bool {
		table, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		switch table.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			lines -= m.dataLines(table)
			return false
		}
		return true
	})
	return lines
}

// dataLines is the number of lines that a table adds to its function: all but
// the one it begins on and those of functions inside it.
func (m *module) dataLines(table ast.Node) int {
	lines := m.span(table) - 1
	ast.Inspect(table, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncLit); ok {
			lines -= m.span(fn) - 1
			return false
		}
		return true
	})
	return lines
}

// functionsShortInTheMiddle looks at the functions of all production code
// together.
func functionsShortInTheMiddle(m *module) []finding {
	var lengths []int
	for _, f := range m.files(production) {
		f.functions(func(d *ast.FuncDecl) { lengths = append(lengths, m.length(d)) })
	}
	if len(lengths) == 0 {
		return nil
	}
	slices.Sort(lengths)
	var findings []finding
	if n := lengths[len(lengths)/2]; n > functionMedian {
		findings = append(findings, finding{"median", fmt.Sprintf("is %d lines, want at most %d", n, functionMedian)})
	}
	if n := lengths[len(lengths)*9/10]; n > functionP90 {
		findings = append(findings, finding{"ninetieth percentile", fmt.Sprintf("is %d lines, want at most %d", n, functionP90)})
	}
	return findings
}

// filesShort finds files over fileMax, tests among them.
func filesShort(m *module) []finding {
	var findings []finding
	for _, f := range m.files(everyFile) {
		if f.lines > fileMax {
			findings = append(findings, finding{f.path, fmt.Sprintf("has %d lines, want at most %d", f.lines, fileMax)})
		}
	}
	return findings
}

// packagesExportLittle finds packages with more than exportedMax names.
func packagesExportLittle(m *module) []finding {
	var findings []finding
	for _, p := range m.packages {
		n := 0
		for _, f := range p.files {
			if f.test {
				continue
			}
			for _, d := range f.syntax.Decls {
				n += exported(d)
			}
		}
		if n > exportedMax {
			findings = append(findings, finding{p.dir, fmt.Sprintf("exports %d names, want at most %d", n, exportedMax)})
		}
	}
	return findings
}

// exported counts the exported names of a declaration, methods left out.
func exported(d ast.Decl) int {
	var names []*ast.Ident
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name)
			case *ast.ValueSpec:
				names = append(names, spec.Names...)
			}
		}
	}
	n := 0
	for _, id := range names {
		if id.IsExported() {
			n++
		}
	}
	return n
}

// weight is how many lines of a package are code and how many test it,
// comments left out.
type weight struct{ code, tests int }

func (m *module) weigh(keep func(*file) bool) weight {
	var w weight
	for _, f := range m.files(keep) {
		if production(f) {
			w.code += f.code
		} else {
			w.tests += f.code
		}
	}
	return w
}

// ofProduct leaves out this package, which would weigh as a test without code.
func ofProduct(f *file) bool { return f.pkg.dir != "internal/house" }

// testsOutweighCode compares the lines of tests with those of production code
// over the whole module.
func testsOutweighCode(m *module) []finding {
	if w := m.weigh(ofProduct); w.tests < w.code {
		return []finding{{"module", fmt.Sprintf("has %d lines of tests for %d lines of code, want at least as many", w.tests, w.code)}}
	}
	return nil
}

// weights is a table of all packages for the test's log.
func weights(m *module) string {
	var b strings.Builder
	b.WriteString("lines without comments\n")
	for _, p := range m.packages {
		w := m.weigh(func(f *file) bool { return f.pkg == p })
		fmt.Fprintf(&b, "%-24s %5d code %5d tests\n", p.dir, w.code, w.tests)
	}
	return b.String()
}

// lines repeats a line.
func lines(n int, line string) string { return strings.Repeat(line+"\n", n) }

func TestFunctionsShort(t *testing.T) {
	fn := func(body string) map[string]string {
		return one("proxy/a.go", "package proxy\n\nfunc (g *Gateway) f() {\n"+body+"}\n")
	}
	found := []string{"proxy.Gateway.f"}
	try(t, functionsShort, []trial{
		{"80 lines", fn(lines(78, "\tg.f()")), nil},
		{"81 lines", fn(lines(79, "\tg.f()")), found},
		{"81 lines, most of them blank", fn("\tg.f()\n" + lines(78, "")), found},
		{"a table of 100 lines", fn("\t_ = []int{\n" + lines(100, "\t\t1,") + "\t}\n"), nil},
		{"a map of 100 lines", fn("\t_ = map[int]int{\n" + lines(100, "\t\t1: 1,") + "\t}\n"), nil},
		{"a table and 81 lines", fn(lines(78, "\tg.f()") + "\t_ = map[int]int{\n" + lines(100, "\t\t1: 1,") + "\t}\n"), found},
		{"a struct of 100 lines is no table", fn("\t_ = point{\n" + lines(100, "\t\t1,") + "\t}\n"), found},
		{"a function in a table is no data", fn("\t_ = []func(){func() {\n" + lines(100, "\tg.f()") + "\t}}\n"), found},
		{"a test", one("proxy/a_test.go", "package proxy\n\nfunc TestA() {\n"+lines(79, "\tf()")+"}\n"), []string{"proxy.TestA"}},
	})
}

func TestFunctionsShortInTheMiddle(t *testing.T) {
	functions := func(n, of int) string { return strings.Repeat("func f() {\n"+lines(of-2, "\tf()")+"}\n", n) }
	try(t, functionsShortInTheMiddle, []trial{
		{"no function", one("proxy/a.go", "package proxy\n"), nil},
		{"most are short", one("proxy/a.go", "package proxy\n\n"+functions(6, 12)+functions(4, 40)), nil},
		{"half are not", one("proxy/a.go", "package proxy\n\n"+functions(5, 12)+functions(5, 13)), []string{"median"}},
		{"one in ten is long", one("proxy/a.go", "package proxy\n\n"+functions(9, 12)+functions(1, 41)), []string{"ninetieth percentile"}},
		{"only tests are long", one("proxy/a_test.go", "package proxy\n\n"+functions(9, 60)), nil},
	})
}

func TestFilesShort(t *testing.T) {
	try(t, filesShort, []trial{
		{"500 lines", one("proxy/a.go", "package proxy\n"+lines(499, "")), nil},
		{"501 lines", one("proxy/a.go", "package proxy\n"+lines(500, "// a")), []string{"proxy/a.go"}},
		{"a test of 501 lines", one("proxy/a_test.go", "package proxy\n"+lines(500, "")), []string{"proxy/a_test.go"}},
	})
}

func TestPackagesExportLittle(t *testing.T) {
	var names, private strings.Builder
	for i := range 25 {
		fmt.Fprintf(&names, "\tA%d = 1\n", i)
		fmt.Fprintf(&private, "\ta%d = 1\n", i)
	}
	block := func(more string) string { return "package proxy\n\nconst (\n" + names.String() + ")\n" + more }
	try(t, packagesExportLittle, []trial{
		{"25 names", one("proxy/a.go", block("")), nil},
		{"private names and methods", one("proxy/a.go", block("var (\n"+private.String()+")\n\nfunc (t t) B() {}\n")), nil},
		{"a type more", one("proxy/a.go", block("type B int\n")), []string{"proxy"}},
		{"a function more, in another file", map[string]string{"proxy/a.go": block(""), "proxy/b.go": "package proxy\n\nfunc B() {}\n"}, []string{"proxy"}},
		{"a test more", map[string]string{"proxy/a.go": block(""), "proxy/a_test.go": "package proxy\n\nfunc TestB() {}\n"}, nil},
	})
}

func TestTestsOutweighCode(t *testing.T) {
	code := "package proxy\n\nvar (\n\ta = 1\n\tb = 2\n)\n"
	try(t, testsOutweighCode, []trial{
		{"as many", map[string]string{"proxy/a.go": code, "proxy/a_test.go": code}, nil},
		{"a suite counts", map[string]string{"limits/a.go": code, "limits/ledgertest/a.go": code}, nil},
		{"comments don't", map[string]string{"proxy/a.go": code, "proxy/a_test.go": "package proxy\n" + lines(9, "// a")}, []string{"module"}},
		{"this package doesn't", map[string]string{"proxy/a.go": code, "internal/house/a_test.go": code}, []string{"module"}},
	})
}
