package proxy

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// namesIn are the tests of a package, and what may be cases of them: "/" and one of its
// strings, or the first two of a literal.
func namesIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is right
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
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
	return names
}

// text is the string of a literal, or empty.
func text(n ast.Expr) (s string) {
	if l, ok := n.(*ast.BasicLit); ok {
		s, _ = strconv.Unquote(l.Value) // a number is none
	}
	return s
}

// TestEachClauseHasATest: no row of docs/rfc9111.md is without one that is there.
func TestEachClauseHasATest(t *testing.T) {
	page, _ := os.ReadFile("../docs/rfc9111.md") // without it there are no rows
	names := map[string]map[string]bool{"proxy": namesIn(t, "."), "cache": namesIn(t, "../cache")}
	rows := regexp.MustCompile(`(?m)^\| [1-9].*$`).FindAllString(string(page), -1)
	for _, row := range rows {
		tests := regexp.MustCompile("`(?:([a-z]+)\\.)?(Test\\w+)(/[^`]+)?`").FindAllStringSubmatch(row, -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, test := range tests {
			all := names[cmp.Or(test[1], "proxy")]
			if !all[test[2]] || test[3] != "" && !all[test[3]] {
				t.Errorf("%s is not there: %s", test[0], row)
			}
		}
	}
	if len(rows) < 50 {
		t.Errorf("%d rows", len(rows))
	}
}
