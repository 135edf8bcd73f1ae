package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentsNameExistingTests checks that each test that a document names as evidence exists.
func TestDocumentsNameExistingTests(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == "bin" {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	documents := map[string]int{"../../SECURITY.md": 30, "../../docs/attacks.md": 30, "../../docs/upgrade.md": 3}
	for _, recipe := range recipes(t) {
		documents[recipe] = 1
	}
	for document, least := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("`(Test|Fuzz)[A-Za-z0-9]+`").FindAllString(string(text), -1)
		if len(names) < least {
			t.Errorf("%s names %d tests, want at least %d", document, len(names), least)
		}
		for _, name := range names {
			if !strings.Contains(source.String(), "\nfunc "+strings.Trim(name, "`")+"(") {
				t.Errorf("%s names %s, which does not exist", document, name)
			}
		}
	}
}

// recipes returns the pages in the table of the recipes.
func recipes(t *testing.T) (pages []string) {
	t.Helper()
	index, err := os.ReadFile("../../docs/recipes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\| \[.+?\]\((.+?)\)`).FindAllStringSubmatch(string(index), -1) {
		pages = append(pages, "../../docs/recipes/"+m[1])
	}
	if len(pages) < 10 {
		t.Errorf("%d recipes, want at least 10", len(pages))
	}
	return pages
}

func TestRecipesHaveTheSameSections(t *testing.T) {
	want := regexp.MustCompile(`^## Configure Weir\n## Configure .+\n## Check\n## Throttles\n## What to expect\n## Limits of the recipe$`)
	for _, page := range recipes(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		sections := strings.Join(regexp.MustCompile("(?m)^## .+").FindAllString(string(text), -1), "\n")
		if !want.MatchString(sections) {
			t.Errorf("%s has the sections\n%s\nwant\n%s", page, sections, want)
		}
	}
}
