package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are those whose commands somebody may type.
func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) < 10 {
		t.Fatalf("%v, %v", docs, err)
	}
	all := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"}
	for _, path := range docs {
		all = append(all, "docs/"+filepath.Base(path))
	}
	return all
}

// fileOf is the text of a file of the checkout.
func fileOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// typed is a command of a page.
type typed struct {
	line    int
	command string
}

var (
	// code is what stands between backquotes, perhaps on two lines of a paragraph.
	code = regexp.MustCompile("`((?:[^`\n]|\n[^`\n])+)`")
	// spoke is a command between words: a program that has words behind it.
	spoke = regexp.MustCompile(`^([A-Z_]+=\S* )*(make|go|weir|bin/weir|curl|docker|kubectl|helm|gh|git|systemctl|systemd-analyze|journalctl|openssl|redis-cli|printf|source|export|kill|promtool|npm|node|sh|bash|…) +\S`)
	// remark is a comment of the shell.
	remark = regexp.MustCompile(`(^|\s+)# .*$`)
)

// commandsOf are the commands of a page, in its order: each line of a block that is
// indented or fenced as sh, whatever it begins with, and code in prose that begins with
// a program.
func commandsOf(text string) (all []typed) {
	add := func(line int, command string) {
		command = strings.TrimPrefix(strings.TrimSpace(remark.ReplaceAllString(command, "")), "bin/")
		if command != "" {
			all = append(all, typed{line, command})
		}
	}
	lines, fence := strings.Split(text, "\n"), ""
	for i, line := range lines {
		edge := strings.HasPrefix(line, "```")
		block := edge || fence != "" || strings.HasPrefix(line, "    ")
		if block && !edge && (fence == "" || fence == "```sh") {
			add(i+1, line)
		}
		switch {
		case edge && fence == "":
			fence = line
		case edge:
			fence = ""
		}
		if block {
			lines[i] = "" // what is left is prose
		}
	}
	prose := strings.Join(lines, "\n")
	for _, m := range code.FindAllStringSubmatchIndex(prose, -1) {
		if span := strings.ReplaceAll(prose[m[2]:m[3]], "\n", " "); spoke.MatchString(span) {
			add(strings.Count(prose[:m[0]], "\n")+1, span)
		}
	}
	slices.SortStableFunc(all, func(a, b typed) int { return cmp.Compare(a.line, b.line) })
	return all
}

func TestCommandsAreFound(t *testing.T) {
	const page = "Run `make test`, or `weir`.\n\n    curl -i x    # twice\n    anything\n\n```sh\nls # here\n# a remark\n```\n\n```yaml\nlisten: `go test x`\n```\n`A=1 go test ./x` and `go`, `bin/weir\nman`, a ` that\n\nis alone, `make x`\n"
	want := []typed{{1, "make test"}, {3, "curl -i x"}, {4, "anything"}, {7, "ls"}, {14, "A=1 go test ./x"}, {14, "weir man"}, {17, "make x"}}
	if got := commandsOf(page); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestDocumentedCommands: each command of the documents is run, or held by what runs the
// same; no row of the tables is of a command that no page has.
func TestDocumentedCommands(t *testing.T) {
	rows := map[string]bool{} // whether a page has it
	for _, r := range ran {
		rows[r.command] = false
	}
	for _, e := range elsewhere {
		rows[e.command] = false
		e.check(t)
	}
	for name := range targets {
		rows["make "+name] = false
	}
	for _, path := range pages(t) {
		covered(t, path, rows)
	}
	for row, there := range rows {
		if !there {
			t.Errorf("no page has %q", row)
		}
	}
	t.Run("run", runDocumented)
}

var assigned = regexp.MustCompile(`^[A-Z_]+=`)

// covered sees that all commands of a page have a row, or need none, and notes in rows
// which it has.
func covered(t *testing.T, path string, rows map[string]bool) {
	t.Helper()
	last := "" // go test
	for _, c := range commandsOf(fileOf(t, path)) {
		where := fmt.Sprintf("%s:%d", path, c.line)
		if rest, short := strings.CutPrefix(c.command, "… "); short {
			c.command = last + " " + rest
		}
		words, row := strings.Fields(c.command), c.command
		if words[0] == "make" && len(words) > 1 {
			makes(t, where, words[2:])
			row = "make " + words[1]
		}
		at := max(slices.IndexFunc(words, func(w string) bool { return !assigned.MatchString(w) }), 0)
		_, there := rows[row]
		switch {
		case there:
			rows[row] = true
		case len(words) > at+1 && words[at] == "go" && words[at+1] == "test":
			last = c.command
			goTest(t, where, words[:at], words[at+2:])
		case !namesCommand(t, words):
			t.Errorf("%s: nothing runs %q", where, c.command)
		}
	}
}

// namesCommand reports whether the words are no more than the name of a command of weir, which
// must be one.
func namesCommand(t *testing.T, words []string) bool {
	if words[0] != "weir" || slices.ContainsFunc(words, func(w string) bool { return strings.Trim(w, "abcdefghijklmnopqrstuvwxyz") != "" }) {
		return false
	}
	var out, problems bytes.Buffer
	code := run(t.Context(), append(words[1:], "--help"), os.LookupEnv, &out, &problems)
	return code == exitOK && strings.Contains(out.String(), "Usage: "+strings.Join(words, " ")+" ")
}

// goTest sees that the names of a go test are there, and that the variables that it sets
// are read by somebody.
func goTest(t *testing.T, where string, variables, words []string) {
	t.Helper()
	for _, v := range variables {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(testFiles(t, "./..."), func(text string) bool { return strings.Contains(text, `"`+name+`"`) }) {
			t.Errorf("%s: nobody reads %s", where, name)
		}
	}
	patterns, dirs := map[string]string{}, []string{}
	for i := 0; i < len(words); i++ {
		switch word := words[i]; {
		case slices.Contains([]string{"-run", "-bench", "-benchtime", "-count", "-timeout"}, word) && i+1 < len(words):
			i++
			patterns[word] = strings.Trim(words[i], "'")
		case strings.HasPrefix(word, "."):
			dirs = append(dirs, word)
		}
	}
	if len(dirs) == 0 {
		t.Errorf("%s: %q names no package", where, words)
	}
	for _, dir := range dirs {
		text := strings.Join(testFiles(t, dir), "\n")
		for flag, kind := range map[string]string{"-run": "Test", "-bench": "Benchmark"} {
			pattern, given := patterns[flag]
			top, below, _ := strings.Cut(pattern, "/")
			if given && pattern != "^$" && !slices.ContainsFunc(named(text, kind), regexp.MustCompile(top).MatchString) {
				t.Errorf("%s: %s has no %s %s", where, dir, kind, pattern)
			}
			if below != "" && !regexp.MustCompile(`"`+strings.TrimPrefix(below, "^")).MatchString(text) {
				t.Errorf("%s: %s has no case %s", where, dir, below)
			}
		}
		if len(named(text, "Test")) == 0 {
			t.Errorf("%s: %s has no tests", where, dir)
		}
	}
}

// named are the functions of that kind in the text of tests.
func named(text, kind string) (names []string) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "func "+kind); ok {
			name, _, _ := strings.Cut(rest, "(")
			names = append(names, kind+name)
		}
	}
	return names
}

// testFiles are the texts of a package's tests, or with /... of those below, too.
func testFiles(t *testing.T, dir string) (texts []string) {
	t.Helper()
	root, deep := strings.CutSuffix(dir, "/...")
	root = filepath.Join("../..", root)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (!deep || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			texts = append(texts, string(text))
			return err
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return texts
}

// makes sees that the variables that a make is given are the Makefile's.
func makes(t *testing.T, where string, words []string) {
	t.Helper()
	for _, word := range words {
		name, _, ok := strings.Cut(word, "=")
		if !ok || !regexp.MustCompile(`(?m)^`+name+` +\?=|\$\$\{`+name+`:-`).MatchString(fileOf(t, "Makefile")) {
			t.Errorf("%s: %q is no variable of the Makefile", where, name)
		}
	}
}

// held sees that a test is there: DIR.NAME.
func held(t *testing.T, what, by string) {
	t.Helper()
	at := strings.LastIndex(by, ".")
	if !slices.Contains(named(strings.Join(testFiles(t, by[:at]), "\n"), "Test"), by[at+1:]) {
		t.Errorf("%s is held by %s, which is not there", what, by)
	}
}

func (e other) check(t *testing.T) {
	t.Helper()
	if e.path != "" {
		if _, err := os.Stat("../../" + e.path); err != nil || !strings.Contains(e.command, e.path) {
			t.Errorf("%q: %s is not there, or not named: %v", e.command, e.path, err)
		}
	}
	if script, place, ok := strings.Cut(e.by, ": "); ok {
		if !strings.Contains(fileOf(t, script), place) {
			t.Errorf("%q: %s has no %q", e.command, script, place)
		}
		return
	}
	held(t, e.command, e.by)
}

// TestTargetsAreRun: a target of the table is one of the Makefile, and what runs it is
// there; what CI is said to run is in .ci/run.
func TestTargetsAreRun(t *testing.T) {
	makefile, script := fileOf(t, "Makefile"), fileOf(t, ".ci/run")
	for name, by := range targets {
		if !strings.Contains(makefile, "\n"+name+": ") {
			t.Errorf("the Makefile has no target %s", name)
		}
		if runs := regexp.MustCompile(`(?m)^make ` + name + `( |$)`).MatchString(script); runs != (by == ci) {
			t.Errorf("make %s: the table says %q; in .ci/run: %t", name, by, runs)
		}
		if by != ci && by != never {
			held(t, "make "+name, by)
		}
	}
}
