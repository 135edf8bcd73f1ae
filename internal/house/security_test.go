package house

import (
	"go/ast"
	"os"
	"regexp"
	"testing"
)

// TestSecurityNamesTestsThatAreThere: what SECURITY.md says is held by a test is.
func TestSecurityNamesTestsThatAreThere(t *testing.T) {
	page, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	m, err := read(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range m.files(everyFile) {
		for _, d := range f.syntax.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && f.test {
				there[function.Name.Name] = true
			}
		}
	}
	names := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1)
	for _, name := range names {
		if !there[name[1]] {
			t.Errorf("SECURITY.md names %s, which is nowhere", name[1])
		}
	}
	if len(names) < 30 {
		t.Errorf("%d names", len(names))
	}
}
