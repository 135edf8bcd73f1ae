package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logEvents returns the messages of the log by level, as the source has them. Tests, the reference service and the suites of
// tests are left out.
func logEvents(t *testing.T) map[string][]string {
	t.Helper()
	events := map[string][]string{}
	for _, dir := range []string{"cmd", "proxy", "limits", "cache", "policy", "internal"} {
		noError(t, filepath.WalkDir(filepath.Join("../..", dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() && slices.Contains([]string{"service", "testservers", "limitstest", "judge", "testdata"}, entry.Name()) {
				return skipped(err)
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "log"}, method.Sel.Name) || !isLogger(method.X) {
					return true
				}
				if text, ok := call.Args[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
					message, _ := strconv.Unquote(text.Value)
					events[method.Sel.Name] = append(events[method.Sel.Name], message)
				} else {
					t.Errorf("%s: a message of the log is not a constant", path)
				}
				return true
			})
			return nil
		}))
	}
	for level := range events {
		slices.Sort(events[level])
		events[level] = slices.Compact(events[level])
	}
	return events
}

// skipped returns an error, or skips a folder.
func skipped(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

// isLogger reports whether an expression is named as a logger: log, g.log, m.config.Log.
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log" || x.Name == "logger"
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	}
	return false
}

// TestLogEventsAreDocumented compares the messages in the source with docs/log-events.md. Operators search and count by
// message, so a change of one is a change of an interface.
func TestLogEventsAreDocumented(t *testing.T) {
	const file = "../../docs/log-events.md"
	text := string(must(os.ReadFile(file))(t))
	for level, events := range logEvents(t) {
		_, section, _ := strings.Cut(text, "\n## "+level+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		var listed []string
		for _, m := range regexp.MustCompile("(?m)^- `(.+)`$").FindAllStringSubmatch(section, -1) {
			listed = append(listed, m[1])
		}
		for _, event := range events {
			if !slices.Contains(listed, event) {
				t.Errorf("%s: add this line to the section %s: %s", file, level, fmt.Sprintf("- `%s`", event))
			}
		}
		for _, event := range listed {
			failIf(t, !slices.Contains(events, event), "%s: no code logs %q with the level %s", file, event, level)
		}
	}
}
