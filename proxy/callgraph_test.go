package proxy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCallGraph follows the calls in docs/internals/architecture.md. Each function, or function field of Config, must be in its file, and
// must be called by the function above it with a smaller indentation.
func TestCallGraph(t *testing.T) {
	files, err := filepath.Glob("*.go")
	noError(t, err)
	page, err := os.ReadFile("../docs/internals/architecture.md")
	noError(t, err)
	calls, definedIn := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		noError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				add(definedIn, f.Name.Name, name)
				ast.Inspect(f, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok {
						add(calls, f.Name.Name, calledName(call))
					}
					return true
				})
			}
		}
		for _, field := range functionFields(file, "Config") {
			add(definedIn, field, name)
		}
	}
	var callers []string // of the line, by depth
	followed := 0
	for _, m := range regexp.MustCompile(`(?m)^((?:  )*)(\w+) +(\w+\.go)$`).FindAllStringSubmatch(string(page), -1) {
		depth, name, file := len(m[1])/2, m[2], m[3]
		stopIf(t, depth > len(callers), "%s: the indentation is too deep", name)
		failIf(t, !definedIn[name][file], "%s is not in %s", name, file)
		if callers = callers[:depth]; depth > 0 && !calls[callers[depth-1]][name] {
			t.Errorf("%s does not call %s", callers[depth-1], name)
		}
		callers = append(callers, name)
		followed++
	}
	failIf(t, followed < 50, "the page has %d calls", followed)
}

// functionFields returns the names of the fields of a struct type that are functions.
func functionFields(file *ast.File, name string) (fields []string) {
	for _, f := range fieldsOf(file, name).List {
		if _, ok := f.Type.(*ast.FuncType); ok {
			fields = append(fields, f.Names[0].Name)
		}
	}
	return fields
}

// fieldsOf returns the fields of a struct type, or an empty list if the file does not define the type.
func fieldsOf(file *ast.File, name string) *ast.FieldList {
	fields := &ast.FieldList{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == name {
			fields = spec.Type.(*ast.StructType).Fields
		}
		return true
	})
	return fields
}

func TestValuesOfARequestHaveFewFields(t *testing.T) {
	for name, file := range map[string]string{"exchange": "exchange.go", "question": "question.go", "attempt": "attempt.go", "Record": "record/record.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		noError(t, err)
		n := fieldsOf(parsed, name).NumFields()
		failIf(t, n == 0 || n > 20, "%s has %d fields, want at most 20", name, n)
	}
}

func add(set map[string]map[string]bool, key, value string) {
	if set[key] == nil {
		set[key] = map[string]bool{}
	}
	set[key][value] = true
}

func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
