package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// budgets are the largest numbers of words outside of code blocks. A page that needs more words needs fewer elsewhere.
var budgets = map[string]int{"docs": 20000, "docs/internals": 12000}

// longestLine is the largest number of characters in a line outside of code blocks and tables.
const longestLine = 120

var (
	codeBlock    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	word         = regexp.MustCompile(`\S*[\p{L}\p{N}]\S*`)
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ +(.+)$`)
)

// pages returns the texts of the documentation without code blocks, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "deploy/*.md"} {
		for _, path := range must(filepath.Glob("../../" + pattern))(t) {
			texts[strings.TrimPrefix(path, "../../")] = codeBlock.ReplaceAllString(string(must(os.ReadFile(path))(t)), "")
		}
	}
	stopIf(t, len(texts) < 40, "only %d pages found", len(texts))
	return texts
}

func TestDocumentsKeepTheirWordBudgets(t *testing.T) {
	words := map[string]int{}
	for path, text := range pages(t) {
		folder := strings.TrimSuffix(filepath.Dir(path), "/recipes")
		words[folder] += len(word.FindAllString(text, -1))
	}
	for folder, most := range budgets {
		failIf(t, words[folder] > most, "%s has %d words, want at most %d: say a fact once, and link to it", folder, words[folder], most)
	}
}

func TestDocumentsHaveShortLines(t *testing.T) {
	for path, text := range pages(t) {
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			n := utf8.RuneCountInString(line)
			failIf(t, n > longestLine && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimLeft(line, "- "), "`"), "%s has a line of %d characters, want at most %d: %.60s…", path, n, longestLine, line)
		}
	}
}

func TestLinksInDocumentsLeadToHeadings(t *testing.T) {
	texts := pages(t)
	for path, text := range texts {
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, ":") {
				continue
			}
			target := filepath.Join(filepath.Dir(path), file)
			if file == "" {
				target = path
			}
			if _, err := os.Stat("../../" + target); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			} else if anchor != "" && !anchors(texts[target])[anchor] {
				t.Errorf("%s links to %s, but %s has no such heading", path, m[1], target)
			}
		}
	}
}

// anchors returns the anchors of the headings of a page.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return found
}

// TestDocumentsNamedByTheCodeExist checks the pages and headings that messages and comments name.
func TestDocumentsNamedByTheCodeExist(t *testing.T) {
	texts := pages(t)
	named := regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md(#[a-z0-9_-]+)?`)
	for _, folder := range []string{"cache", "cmd", "internal", "limits", "policy", "proxy", "configs", "deploy"} {
		err := filepath.WalkDir("../../"+folder, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "late_test.go") { // has paths of the API
				return err
			}
			for _, name := range named.FindAllString(string(must(os.ReadFile(path))(t)), -1) {
				page, anchor, _ := strings.Cut(name, "#")
				text, ok := texts[page]
				failIf(t, !ok || anchor != "" && !anchors(text)[anchor], "%s names %s, which does not exist", path, name)
			}
			return nil
		})
		noError(t, err)
	}
}

// TestVersionIsThatOfTheChangelog checks the places that state the version in work. Its owner is the first heading of
// CHANGELOG.md with a version.
// TestDetailsOfCacheStatusAreDocumented finds each detail of a refusal in the table of docs/cache.md.
func TestDetailsOfCacheStatusAreDocumented(t *testing.T) {
	table := string(must(os.ReadFile("../../docs/cache.md"))(t))
	names := regexp.MustCompile(`(?:[dD]etail: +|Reason += )"([a-z-]+)"`)
	var found int
	for _, pattern := range []string{"proxy/*.go", "proxy/refusal/*.go", "proxy/screen/*.go", "limits/*.go", "limits/redisledger/*.go"} {
		for _, path := range must(filepath.Glob("../../" + pattern))(t) {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, name := range names.FindAllStringSubmatch(string(must(os.ReadFile(path))(t)), -1) {
				found++
				failIf(t, !regexp.MustCompile("(?m)^\\|[^|]*`"+name[1]+"`[^|]*\\|").MatchString(table), "docs/cache.md does not describe detail=%s of %s", name[1], path)
			}
		}
	}
	failIf(t, found < 30, "only %d details found", found)
}

func TestVersionIsThatOfTheChangelog(t *testing.T) {
	read := func(path string) string { return string(must(os.ReadFile("../../" + path))(t)) }
	m := regexp.MustCompile(`(?m)^## .*?(\d+\.\d+\.\d+)`).FindStringSubmatch(read("CHANGELOG.md"))
	stopIf(t, m == nil, "CHANGELOG.md has no heading with a version")
	stated := regexp.MustCompile("(?m)(?:^version: |^appVersion: v|VERSION=v|tag: v|tag `v|-version v|`## )(\\d+\\.\\d+\\.\\d+)")
	for path, times := range map[string]int{
		"deploy/helm/weir/Chart.yaml": 2, "deploy/README.md": 4, "deploy/docker/Dockerfile": 1, "CONTRIBUTING.md": 2, ".ci/release/main.go": 1,
	} {
		found := stated.FindAllStringSubmatch(read(path), -1)
		failIf(t, len(found) != times, "%s states the version %d times, want %d", path, len(found), times)
		for _, f := range found {
			failIf(t, f[1] != m[1], "%s: %q, want the version %s of CHANGELOG.md", path, f[0], m[1])
		}
	}
}

var writeArchitecture = flag.Bool("write-architecture", false, "write the generated part of "+architecture)

const architecture = "docs/internals/architecture.md"

// TestArchitecturePageShowsTheCode compares the page with the packages and their imports.
func TestArchitecturePageShowsTheCode(t *testing.T) {
	var want strings.Builder
	const module, format = "github.com/weirgate/weir/", `{{.ImportPath}}|{{.Doc}}|{{join .Imports " "}}`
	want.WriteString("```text\n")
	for line := range strings.Lines(string(must(exec.Command("go", "list", "-f", format, "../../...").Output())(t))) {
		part := strings.Split(strings.TrimSpace(line), "|")
		name := strings.TrimPrefix(part[0], module)
		if strings.HasPrefix(name, "e2e") {
			continue
		}
		_, doc, _ := strings.Cut(part[1], " "+filepath.Base(name)+" ")
		fmt.Fprintf(&want, "%-*s %s\n", 22, name, doc)
		imports := "  →"
		for path := range strings.FieldsSeq(part[2]) {
			if imported, ours := strings.CutPrefix(path, module); ours {
				imports += " " + imported
			}
		}
		if imports != "  →" {
			want.WriteString(imports + "\n")
		}
	}
	want.WriteString("```\n")
	page := string(must(os.ReadFile("../../" + architecture))(t))
	before, rest, _ := strings.Cut(page, "<!-- begin generated -->\n")
	got, after, ok := strings.Cut(rest, "<!-- end generated -->\n")
	switch {
	case !ok:
		t.Fatal("the page has no generated part")
	case got != want.String() && *writeArchitecture:
		noError(t, os.WriteFile("../../"+architecture, []byte(before+"<!-- begin generated -->\n"+want.String()+"<!-- end generated -->\n"+after), 0o644))
	case got != want.String():
		t.Errorf("the page shows other code; run go test ./cmd/weir -run Architecture -write-architecture\n%s", cmp.Diff(got, want.String()))
	}
}

// TestEachDependencyHasAReason compares the table of dependencies with go.mod.
func TestEachDependencyHasAReason(t *testing.T) {
	reasons := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| \\S.*\\|$").FindAllStringSubmatch(string(must(os.ReadFile("../../"+architecture))(t)), -1) {
		reasons[m[1]] = true
	}
	direct := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(must(os.ReadFile("../../go.mod"))(t)), -1) {
		direct[m[1]] = true
	}
	diff := cmp.Diff(slices.Sorted(maps.Keys(direct)), slices.Sorted(maps.Keys(reasons)))
	failIf(t, diff != "" || len(direct) < 10, "direct dependencies and their reasons differ:\n%s", diff)
}
