package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// noInit finds init functions: what a package needs it makes when asked.
func noInit(m *module) []finding {
	var findings []finding
	for _, f := range m.files(everyFile) {
		f.functions(func(d *ast.FuncDecl) {
			if d.Recv == nil && d.Name.Name == "init" {
				findings = append(findings, finding{f.path, "has an init function; make things where they are needed"})
			}
		})
	}
	return findings
}

// variablesConstant finds package variables that can change: those without a
// value (they wait for one), those that exist to be changed (locks, channels,
// atomics), and those that something is assigned to or whose address is taken,
// be it in a test. Regular expressions, error values, tables, embedded files
// and sync.OnceValue pass.
func variablesConstant(m *module) []finding {
	var findings []finding
	for _, p := range m.packages {
		for _, f := range p.files {
			for _, d := range f.syntax.Decls {
				if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.VAR && production(f) {
					findings = append(findings, declaredChangeable(f, d)...)
				}
			}
		}
		findings = append(findings, m.changes(p)...)
	}
	return findings
}

// declaredChangeable looks at declarations.
func declaredChangeable(f *file, d *ast.GenDecl) []finding {
	var findings []finding
	imports := f.importNames()
	for _, spec := range d.Specs {
		spec := spec.(*ast.ValueSpec)
		for i, id := range spec.Names {
			var value ast.Expr
			if i < len(spec.Values) {
				value = spec.Values[i]
			}
			what := ""
			switch {
			case id.Name == "_" || embeds(d, spec):
			case len(spec.Values) == 0:
				what = "has no value, so something will assign one"
			case stateful(spec.Type, imports) || stateful(valueType(value), imports):
				what = "is state"
			}
			if what != "" {
				findings = append(findings, finding{f.pkg.dir + "." + id.Name, what + "; put it into a struct that somebody owns"})
			}
		}
	}
	return findings
}

// embeds reports whether the declaration carries a go:embed directive.
func embeds(d *ast.GenDecl, spec *ast.ValueSpec) bool {
	directive := func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") }
	for _, doc := range []*ast.CommentGroup{d.Doc, spec.Doc} {
		if doc != nil && slices.ContainsFunc(doc.List, directive) {
			return true
		}
	}
	return false
}

// valueType is the type that a literal, make or new spells out.
func valueType(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return e.Type
	case *ast.UnaryExpr:
		return valueType(e.X)
	case *ast.CallExpr:
		if name := identName(e.Fun); (name == "make" || name == "new") && len(e.Args) > 0 {
			return e.Args[0]
		}
	}
	return nil
}

// stateful reports whether values of the type are there to be changed.
func stateful(t ast.Expr, imports map[string]string) bool {
	switch t := t.(type) {
	case *ast.ChanType:
		return true
	case *ast.StarExpr:
		return stateful(t.X, imports)
	case *ast.IndexExpr:
		return stateful(t.X, imports)
	default:
		path, _ := selected(t, imports)
		return path == "sync" || path == "sync/atomic"
	}
}

// changes looks at the code of the package and its tests. It resolves names by
// the type checker without importing anything: a name of another package stays
// unknown, which is enough to tell a local from a package variable.
func (m *module) changes(p *pkg) []finding {
	var findings []finding
	byName := map[string][]*file{} // package and package_test are checked apart
	for _, f := range p.files {
		name := f.syntax.Name.Name
		byName[name] = append(byName[name], f)
	}
	for name, files := range byName {
		uses := m.resolve(name, files)
		for _, f := range files {
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				for _, e := range changed(n) {
					if variable := packageVariable(e, uses); variable != "" {
						findings = append(findings, finding{p.dir + "." + variable, fmt.Sprintf("is changed in %s line %d", f.path, m.line(n))})
					}
				}
				return true
			})
		}
	}
	return findings
}

// nothing imports no package.
type nothing struct{}

func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

// resolve maps each identifier to what it stands for.
func (m *module) resolve(name string, files []*file) map[*ast.Ident]types.Object {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	syntax := make([]*ast.File, len(files))
	for i, f := range files {
		syntax[i] = f.syntax
	}
	config := types.Config{Importer: nothing{}, Error: func(error) {}}
	_, _ = config.Check(name, m.fset, syntax, info) // errors: whatever is imported
	return info.Uses
}

// changed returns the expressions that the node writes to or takes the address
// of.
func changed(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Lhs // those that := declares are uses of nothing
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			return []ast.Expr{n.Key, n.Value}
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			return []ast.Expr{n.X}
		}
	case *ast.CallExpr:
		if name := identName(n.Fun); slices.Contains([]string{"clear", "copy", "delete"}, name) && len(n.Args) > 0 {
			return n.Args[:1]
		}
	}
	return nil
}

// packageVariable returns the name of the package variable that the expression
// is, is a part of, or points into; "package.Name" for one of another package.
func packageVariable(e ast.Expr, uses map[*ast.Ident]types.Object) string {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return packageVariable(e.X, uses)
	case *ast.StarExpr:
		return packageVariable(e.X, uses)
	case *ast.IndexExpr:
		return packageVariable(e.X, uses)
	case *ast.SliceExpr:
		return packageVariable(e.X, uses)
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if other, ok := uses[x].(*types.PkgName); ok {
				return other.Name() + "." + e.Sel.Name
			}
		}
		return packageVariable(e.X, uses)
	case *ast.Ident:
		if v, ok := uses[e].(*types.Var); ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
			return e.Name
		}
	}
	return ""
}

func TestNoInit(t *testing.T) {
	try(t, noInit, []trial{
		{"init", one("proxy/a.go", "package proxy\n\nfunc init() {}\n"), []string{"proxy/a.go"}},
		{"init of a test", one("proxy/a_test.go", "package proxy\n\nfunc init() {}\n"), []string{"proxy/a_test.go"}},
		{"a method of that name", one("proxy/a.go", "package proxy\n\nfunc (g *Gateway) init() {}\n"), nil},
	})
}

func TestVariablesConstant(t *testing.T) {
	const head = "package proxy\n\nimport (\n\t\"embed\"\n\t\"errors\"\n\t\"net/http\"\n\t\"regexp\"\n\t\"sync\"\n\t\"sync/atomic\"\n)\n\n"
	proxy := func(text string) map[string]string { return one("proxy/a.go", head+text+"\n") }
	v := []string{"proxy.v"}
	try(t, variablesConstant, []trial{
		{"what may stand there", proxy("var (\n\tv = errors.New(\"a\")\n\tw = regexp.MustCompile(\"a\")\n\tx = sync.OnceValue(f)\n\ty = map[string]int{\"a\": 1}\n\t_ http.Handler = g\n)\n\n//go:embed a\nvar z embed.FS"), nil},
		{"no value", proxy("var v int"), v},
		{"a lock", proxy("var v = sync.Mutex{}"), v},
		{"a counter", proxy("var v = new(atomic.Int64)"), v},
		{"a pointer to a typed pointer", proxy("var v = &atomic.Pointer[int]{}"), v},
		{"a channel", proxy("var v = make(chan int)"), v},
		{"assigned", proxy("var v = 1\n\nfunc f() { v = 2 }"), v},
		{"counted", proxy("var v = 1\n\nfunc f() { v++ }"), v},
		{"ranged over", proxy("var v = 1\n\nfunc f() {\n\tfor v = range 3 {\n\t}\n}"), v},
		{"an entry is written", proxy("var v = map[string][]int{}\n\nfunc f() { v[\"a\"][0] = 1 }"), v},
		{"an entry is deleted", proxy("var v = map[string]int{}\n\nfunc f() { delete(v, \"a\") }"), v},
		{"a field is written", proxy("var v = &struct{ n int }{1}\n\nfunc f() { (*v).n = 1 }"), v},
		{"its address goes elsewhere", proxy("var v = 1\n\nfunc f() *int { return &v }"), v},
		{"in another file", map[string]string{"proxy/a.go": "package proxy\n\nvar v = 1\n", "proxy/b.go": "package proxy\n\nfunc f() { v = 2 }\n"}, v},
		{"by a test", map[string]string{"proxy/a.go": "package proxy\n\nvar v = 1\n", "proxy/a_test.go": "package proxy\n\nfunc f() { v = 2 }\n"}, v},
		{"another package's", proxy("func f() { http.DefaultClient = nil }"), []string{"proxy.http.DefaultClient"}},
		{"another package's field", proxy("func f() { http.DefaultClient.Timeout = 1 }"), []string{"proxy.http.DefaultClient"}},
		{"a local of the same name", proxy("var v = 1\n\nfunc f() {\n\tv := 2\n\tv++\n}"), nil},
		{"read only", proxy("var v = []int{1}\n\nfunc f() int { return v[0] }"), nil},
	})
}
