package house

import (
	"cmp"
	"go/ast"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// testsByPackage are the tests of the module, by the last part of their package's path,
// and what may be cases of them: "/" and one of the package's strings, or the first two
// of a literal.
func testsByPackage(t *testing.T) map[string]map[string]bool {
	t.Helper()
	m, err := read(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]map[string]bool{}
	for _, f := range m.files(func(f *file) bool { return f.test }) {
		names := tests[path.Base(f.pkg.dir)]
		if names == nil {
			names = map[string]bool{}
			tests[path.Base(f.pkg.dir)] = names
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
			case *ast.BasicLit:
				names["/"+text(n)] = true
			case *ast.CompositeLit:
				if len(n.Elts) > 1 {
					names["/"+text(n.Elts[0])+" "+text(n.Elts[1])] = true
				}
			}
			return true
		})
	}
	return tests
}

// text is the string of a literal, or empty.
func text(n ast.Expr) (s string) {
	if l, ok := n.(*ast.BasicLit); ok {
		s, _ = strconv.Unquote(l.Value) // a number is none
	}
	return s
}

var (
	testName = regexp.MustCompile("`(?:([a-z0-9]+)\\.)?((?:Test|Fuzz)\\w+)(/[^`]+)?`")
	tableRow = regexp.MustCompile(`(?m)^\| [1-9].*$`)
)

// TestNamedTestsAreThere: where a page says that something is held by a test, it is. A
// name without a package is one of proxy's in docs, and anybody's in SECURITY.md.
func TestNamedTestsAreThere(t *testing.T) {
	tests := testsByPackage(t)
	there := func(where, name string) bool {
		for dir, names := range tests {
			if (where == "" || where == dir) && names[name] {
				return true
			}
		}
		return false
	}
	for page, usual := range map[string]string{"SECURITY.md": "", "docs/attacks.md": "proxy", "docs/failures.md": "proxy", "docs/rfc9111.md": "proxy"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		names := testName.FindAllStringSubmatch(string(text), -1)
		for _, n := range names {
			where := cmp.Or(n[1], usual)
			if !there(where, n[2]) || n[3] != "" && !there(where, n[3]) {
				t.Errorf("%s names %s, which is not there", page, n[0])
			}
		}
		if len(names) < 30 {
			t.Errorf("%s has %d names", page, len(names))
		}
		for _, row := range tableRow.FindAllString(string(text), -1) {
			if !testName.MatchString(row) {
				t.Errorf("%s has a row without a test: %s", page, row)
			}
		}
	}
}

// TestEachAttackHasATest: every case of docs/attacks.md, 1 to 63, is a row of its own,
// and every test that bears the number of a case stands in a row.
func TestEachAttackHasATest(t *testing.T) {
	page, err := os.ReadFile("../../docs/attacks.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := tableRow.FindAllString(string(page), -1)
	for i, row := range rows {
		if number, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " "); number != strconv.Itoa(i+1) {
			t.Fatalf("row %d is of case %s", i+1, number)
		}
	}
	if len(rows) != 63 {
		t.Errorf("%d rows", len(rows))
	}
	all := strings.Join(rows, "\n")
	for dir, names := range testsByPackage(t) {
		for name := range names {
			if regexp.MustCompile(`^TestAttack\d`).MatchString(name) && !strings.Contains(all, name+"`") {
				t.Errorf("%s.%s stands in no row", dir, name)
			}
		}
	}
}
