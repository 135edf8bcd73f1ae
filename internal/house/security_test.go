package house

import (
	"go/ast"
	"os"
	"regexp"
	"testing"
)

// TestSecurityNamesTestsThatAreThere: what SECURITY.md and docs/attacks.md say is held
// by a test is.
func TestSecurityNamesTestsThatAreThere(t *testing.T) {
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
	name := regexp.MustCompile("`(?:\\w+\\.)?((?:Test|Fuzz)\\w+)[`/]")
	for _, page := range []string{"SECURITY.md", "docs/attacks.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		names := name.FindAllStringSubmatch(string(text), -1)
		for _, n := range names {
			if !there[n[1]] {
				t.Errorf("%s names %s, which is nowhere", page, n[1])
			}
		}
		if len(names) < 30 {
			t.Errorf("%s has %d names", page, len(names))
		}
	}
}
