package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain makes of the test's binary the servers that the benchmark starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
		return
	}
	os.Exit(m.Run())
}

// asTested are the flags with which the tests were built: what they have compiled is not
// compiled again.
func asTested(t *testing.T) []string {
	t.Helper()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("no build information")
	}
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return []string{"-race"}
	}
	return nil
}

// TestTheBenchmarkRuns runs all of it, small and short: every server starts, answers and
// is measured, and the page and the picture are written. The figures mean nothing, so
// columns that only differ in numbers are left out.
func TestTheBenchmarkRuns(t *testing.T) {
	t.Chdir("../..")
	dir := t.TempDir()
	page, err := os.ReadFile("docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "performance.md"), page, 0o600); err != nil {
		t.Fatal(err)
	}
	all := columns()
	some := []column{all[1], all[5]} // over Redis a busy machine loses it, and that is a run that failed
	flags, weir := asTested(t), filepath.Join(dir, "weir")
	compile := slices.Concat([]string{"go", "build"}, flags, []string{"-o", weir, "./cmd/weir"})
	o := options{columns: some, rounds: 1, time: 50 * time.Millisecond, turns: 1, starts: 1, entries: 200, few: 20, accounts: 50, compile: compile, flags: flags, weir: weir, docs: dir}
	if err := bench(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range some {
		_, table, found := strings.Cut(string(after), "### "+c.title+"\n")
		table, _, _ = strings.Cut(table, "### ")
		for _, name := range c.servers {
			if !found || !strings.Contains(table, "| "+bold(name)+" |") {
				t.Errorf("%s: nothing is told of %s", c.title, name)
			}
		}
	}
	for _, what := range []string{"start to first answer", "resident, idle", "resident, 200 answers", "size of the binary", "p50 that Weir adds, memory ledger", "finding the operation among 1,000"} {
		if !strings.Contains(string(after), "| "+what) {
			t.Errorf("nothing is told of: %s", what)
		}
	}
	drawn, err := os.Open(filepath.Join(dir, "performance.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = drawn.Close() }()
	for d := xml.NewDecoder(drawn); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
}
