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
	for document, least := range map[string]int{"../../SECURITY.md": 30, "../../docs/attacks.md": 30, "../../docs/upgrade.md": 3} {
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
