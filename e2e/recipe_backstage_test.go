//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// TestBackstageRecipe reads locations with the integration library of Backstage.
func TestBackstageRecipe(t *testing.T) {
	r := startRecipe(t, "backstage.md")
	settings, err := json.Marshal(r.settings())
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "APP_CONFIG="+strings.ReplaceAll(string(settings), "${WEIR_KEY}", r.key))
	args := []string{installed(t, "backstage.mjs"), "{}"}
	for _, repository := range []string{"widgets", "secret", "spare-1", "spare-2"} {
		args = append(args, "https://github.com/acme/"+repository+"/blob/main/README.md")
	}
	type location struct {
		Status, Size int
		ETag         string
	}
	check := func(got string, status, size int) {
		t.Helper()
		var result map[string]json.RawMessage
		if err := json.Unmarshal([]byte(got), &result); err != nil {
			t.Fatal(err)
		}
		for _, url := range args[2:] {
			var l location
			if err := json.Unmarshal(result[url], &l); err != nil || l.Status != status || (l.Size > 0) != (size > 0) || l.ETag == "" {
				t.Errorf("%s: got %s, want %d: %v", url, result[url], status, err)
			}
		}
		if string(result["files"]) != "22" {
			t.Errorf("a wildcard found %s files", result["files"])
		}
	}
	first, spent := r.run("node", args...)
	check(first, http.StatusOK, 1)
	if spent != 6 {
		t.Errorf("the first run spent %d requests, want 6", spent)
	}
	args[1] = first
	for range 2 {
		again, spent := r.run("node", args...)
		check(again, http.StatusNotModified, 0)
		if spent != 0 {
			t.Errorf("a run with ETags spent %d requests", spent)
		}
		r.expire()
	}
	r.checkSpending()
}
