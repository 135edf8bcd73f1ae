package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// packagesDocumented finds packages without a comment that begins "Package
// name" or, for a command, "Command name", and packages with two.
func packagesDocumented(m *module) []finding {
	var findings []finding
	for _, p := range m.packages {
		var docs []string
		for _, f := range p.files {
			if !f.test && f.syntax.Doc != nil {
				docs = append(docs, f.syntax.Doc.Text())
			}
		}
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command "
		}
		switch {
		case len(docs) != 1:
			findings = append(findings, finding{p.dir, fmt.Sprintf("has %d package comments, want one", len(docs))})
		case !strings.HasPrefix(docs[0], want):
			findings = append(findings, finding{p.dir, fmt.Sprintf("package comment should begin %q", want)})
		}
	}
	return findings
}

// wellKnown are methods whose meaning the standard library fixes; a comment
// could only repeat it.
var wellKnown = []string{"Error", "Is", "LogValue", "MarshalJSON", "MarshalText", "MarshalYAML", "RoundTrip", "ServeHTTP", "String", "UnmarshalJSON", "UnmarshalText", "UnmarshalYAML", "Unwrap"}

// namesDocumented finds exported names without a comment: constants,
// variables, types, functions, and methods of exported types.
func namesDocumented(m *module) []finding {
	var findings []finding
	for _, f := range m.files(production) {
		miss := func(name string) {
			findings = append(findings, finding{f.pkg.dir + "." + name, "has no doc comment that begins with its name"})
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				receiver := receiverName(d)
				public := d.Name.IsExported() && (receiver == "" || ast.IsExported(receiver))
				if public && !documented(d.Doc, d.Name.Name) && (receiver == "" || !slices.Contains(wellKnown, d.Name.Name)) {
					miss(funcName(d))
				}
			case *ast.GenDecl:
				for _, name := range undocumented(d) {
					miss(name)
				}
			}
		}
	}
	return findings
}

// undocumented returns the exported names of a declaration that nothing
// documents. A type and a lone value need a comment that begins with the name;
// in a group of values one comment may speak for all.
func undocumented(d *ast.GenDecl) []string {
	var names []string
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && !documented(spec.Doc, spec.Name.Name) && !documented(d.Doc, spec.Name.Name) {
				names = append(names, spec.Name.Name)
			}
		case *ast.ValueSpec:
			grouped := d.Lparen != token.NoPos && (d.Doc != nil || spec.Doc != nil || spec.Comment != nil)
			for _, id := range spec.Names {
				if id.IsExported() && !grouped && !documented(d.Doc, id.Name) {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}

// documented reports whether the comment begins with the name, after an
// article at most.
func documented(doc *ast.CommentGroup, name string) bool {
	words := strings.Fields(doc.Text())
	if len(words) > 1 && slices.Contains([]string{"A", "An", "The"}, words[0]) {
		words = words[1:]
	}
	return len(words) > 1 && strings.TrimRight(words[0], ",.:;") == name
}

// vague are package names that say nothing about what is inside.
var vague = []string{"base", "common", "helper", "helpers", "misc", "models", "shared", "types", "util", "utils"}

// packageNames finds packages with a vague name, and packages whose name is
// not that of their directory.
func packageNames(m *module) []finding {
	var findings []finding
	for _, p := range m.packages {
		if slices.Contains(vague, p.name) {
			findings = append(findings, finding{p.dir, fmt.Sprintf("%q says nothing about what is inside", p.name)})
		}
		if p.name != "main" && p.name != p.dir[strings.LastIndex(p.dir, "/")+1:] {
			findings = append(findings, finding{p.dir, "is called " + p.name + ", its directory is not"})
		}
	}
	return findings
}

func TestPackagesDocumented(t *testing.T) {
	try(t, packagesDocumented, []trial{
		{"documented", one("cache/a.go", "// Package cache keeps.\npackage cache\n"), nil},
		{"undocumented", one("cache/a.go", "package cache\n"), []string{"cache"}},
		{"another package's comment", one("cache/a.go", "// Package caches keeps.\npackage cache\n"), []string{"cache"}},
		{"only the test is documented", one("cache/a_test.go", "// Package cache keeps.\npackage cache\n"), []string{"cache"}},
		{"a licence is no documentation", one("cache/a.go", "// Copyright\n\npackage cache\n"), []string{"cache"}},
		{"twice", map[string]string{
			"cache/a.go": "// Package cache keeps.\npackage cache\n",
			"cache/b.go": "// Package cache keeps too.\npackage cache\n",
		}, []string{"cache"}},
		{"a command", one("cmd/weir/a.go", "// Command weir runs.\npackage main\n"), nil},
		{"a command that calls itself a package", one("cmd/weir/a.go", "// Package main runs.\npackage main\n"), []string{"cmd/weir"}},
	})
}

func TestNamesDocumented(t *testing.T) {
	cache := func(decl string) map[string]string { return one("cache/a.go", "package cache\n\n"+decl+"\n") }
	try(t, namesDocumented, []trial{
		{"a function", cache("func Keep() {}"), []string{"cache.Keep"}},
		{"a documented function", cache("// Keep keeps.\nfunc Keep() {}"), nil},
		{"a private function", cache("func keep() {}"), nil},
		{"a comment about something else", cache("// It keeps.\nfunc Keep() {}"), []string{"cache.Keep"}},
		{"a comment that is only the name", cache("// Keep\nfunc Keep() {}"), []string{"cache.Keep"}},
		{"a type with an article", cache("// An Entry is kept.\ntype Entry struct{}"), nil},
		{"a type in a group", cache("type (\n\t// Entry is kept.\n\tEntry struct{}\n\tKey string\n)"), []string{"cache.Key"}},
		{"a method", cache("// Entry is kept.\ntype Entry[T any] struct{}\n\nfunc (e *Entry[T]) Age() {}"), []string{"cache.Entry.Age"}},
		{"a method of a private type", cache("type entry struct{}\n\nfunc (entry) Age() {}"), nil},
		{"a method that everybody knows", cache("// Entry is kept.\ntype Entry struct{}\n\nfunc (Entry) String() string { return \"\" }"), nil},
		{"a function that has the name of such a method", cache("func String() {}"), []string{"cache.String"}},
		{"a group with a comment", cache("// How an answer is kept.\nconst (\n\tHit = iota\n\tMiss\n)"), nil},
		{"a group with a comment per line", cache("const (\n\tHit = 0 // found\n\tMiss = 1\n)"), []string{"cache.Miss"}},
		{"a lone variable with a comment about something else", cache("// It is gone.\nvar ErrGone error"), []string{"cache.ErrGone"}},
		{"a lone variable", cache("var ErrGone, errLost error"), []string{"cache.ErrGone"}},
		{"a test's name", one("cache/a_test.go", "package cache\n\nfunc TestKeep() {}\n"), nil},
	})
}

func TestPackageNames(t *testing.T) {
	try(t, packageNames, []trial{
		{"a noun", one("cache/a.go", "package cache\n"), nil},
		{"a command", one("cmd/weir/a.go", "package main\n"), nil},
		{"an external test alone", one("cache/a_test.go", "package cache_test\n"), nil},
		{"a drawer", one("internal/util/a.go", "package util\n"), []string{"internal/util"}},
		{"a drawer behind another directory", one("internal/text/a.go", "package helpers\n"), []string{"internal/text", "internal/text"}},
	})
}
