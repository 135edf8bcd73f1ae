package house

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strings"
	"testing"
)

const modulePath = "github.com/weirgate/weir"

// module is the source of this module: parsed, nothing imported.
type module struct {
	fset     *token.FileSet
	packages []*pkg
}

// pkg is the Go files of one directory, those of its tests among them.
type pkg struct {
	dir   string // relative to the module, with slashes: "internal/config"
	name  string
	files []*file
}

// file is one Go file.
type file struct {
	pkg    *pkg
	path   string // relative to the module: "proxy/refuse.go"
	test   bool
	syntax *ast.File
	lines  int // all of them
	code   int // those that hold more than a comment
}

// read parses every Go file below root, in order. Like the go command it
// passes over testdata, names that begin with a dot or an underscore, and
// other modules.
func read(root fs.FS) (*module, error) {
	m := &module{fset: token.NewFileSet()}
	packages := map[string]*pkg{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && foreign(root, name):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		dir := path.Dir(name)
		if packages[dir] == nil {
			packages[dir] = &pkg{dir: dir}
			m.packages = append(m.packages, packages[dir])
		}
		return m.readFile(root, name, packages[dir])
	})
	sort.Slice(m.packages, func(i, j int) bool { return m.packages[i].dir < m.packages[j].dir })
	return m, err
}

// foreign reports whether the directory is not of this module's packages.
func foreign(root fs.FS, dir string) bool {
	if dir == "." {
		return false
	}
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

func (m *module) readFile(root fs.FS, name string, p *pkg) error {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	syntax, err := parser.ParseFile(m.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f := &file{pkg: p, path: name, test: strings.HasSuffix(name, "_test.go"), syntax: syntax}
	f.lines = strings.Count(string(text), "\n")
	f.code = codeLines(text)
	p.files = append(p.files, f)
	if p.name == "" || !f.test {
		p.name = strings.TrimSuffix(syntax.Name.Name, "_test")
	}
	return nil
}

// codeLines counts the lines that hold more than a comment.
func codeLines(text []byte) int {
	fset := token.NewFileSet()
	f := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(f, text, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		first := f.Line(pos)
		for n := range strings.Count(strings.TrimSuffix(literal, "\n"), "\n") + 1 {
			lines[first+n] = true
		}
	}
}

// files returns the files of all packages that keep says yes to.
func (m *module) files(keep func(*file) bool) []*file {
	var kept []*file
	for _, p := range m.packages {
		for _, f := range p.files {
			if keep(f) {
				kept = append(kept, f)
			}
		}
	}
	return kept
}

// production reports whether the file is part of what users build.
func production(f *file) bool { return !f.test && !testOnly(f.pkg.dir) }

func everyFile(*file) bool { return true }

// line is the line on which the node begins.
func (m *module) line(n ast.Node) int { return m.fset.Position(n.Pos()).Line }

// span is the number of lines that the node covers.
func (m *module) span(n ast.Node) int { return m.fset.Position(n.End()).Line - m.line(n) + 1 }

// funcName is "Name" or "Type.Name".
func funcName(d *ast.FuncDecl) string {
	if receiver := receiverName(d); receiver != "" {
		return receiver + "." + d.Name.Name
	}
	return d.Name.Name
}

// receiverName is the receiver's type without pointer and type parameters, or
// empty for a function.
func receiverName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// functions calls visit for each function and method declared in the file.
func (f *file) functions(visit func(*ast.FuncDecl)) {
	for _, d := range f.syntax.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			visit(fn)
		}
	}
}

// importNames maps the name under which the file knows a package to its path.
// A package without a name of its own in the file is known by the last element
// of its path, major version left out.
func (f *file) importNames() map[string]string {
	names := map[string]string{}
	for _, spec := range f.syntax.Imports {
		importPath := strings.Trim(spec.Path.Value, `"`)
		if spec.Name != nil {
			names[spec.Name.Name] = importPath
			continue
		}
		base := path.Base(importPath)
		if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
			base = path.Base(path.Dir(importPath))
		}
		names[base] = importPath
	}
	return names
}

// selected returns path and name of a selector on an imported package:
// "net/http" and "Error" for http.Error.
func selected(e ast.Expr, imports map[string]string) (importPath, name string) {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	return imports[x.Name], sel.Sel.Name
}

func TestReadPassesOverWhatIsNotOurs(t *testing.T) {
	m := parse(t, map[string]string{
		"policy/a.go":                "package policy\n",
		"policy/a_test.go":           "package policy_test\n",
		"policy/testdata/broken.go":  "not Go",
		".ci/broken.go":              "not Go",
		"_old/broken.go":             "not Go",
		"another/go.mod":             "module another\n",
		"another/broken.go":          "not Go",
		"policy/operations/any.yaml": "a: 1\n",
	})
	if len(m.packages) != 1 || m.packages[0].dir != "policy" || m.packages[0].name != "policy" || len(m.packages[0].files) != 2 {
		t.Errorf("read %+v, want the package policy with two files", m.packages)
	}
}

func TestCodeLinesLeaveCommentsOut(t *testing.T) {
	const source = "// Package a.\npackage a\n\n/* of\nno\ncount */\n\nvar b = `two\nlines` // and a comment\n"
	if got := codeLines([]byte(source)); got != 3 {
		t.Errorf("codeLines = %d, want 3", got)
	}
}
