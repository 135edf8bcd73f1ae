package policy

import (
	"encoding/json"
	"testing"
)

func TestFormerName(t *testing.T) {
	for _, c := range []struct{ name, repository, changes, want string }{
		{"renamed repository", "acme/gears", `{"repository":{"name":{"from":"Widgets"}}}`, "acme/widgets"},
		{"transferred from an organization", "acme/widgets", `{"owner":{"from":{"organization":{"login":"Umbrella"}}}}`, "umbrella/widgets"},
		{"transferred from a user", "acme/widgets", `{"owner":{"from":{"user":{"login":"ann"}}}}`, "ann/widgets"},
		{"renamed organization", "", `{"login":{"from":"Umbrella"}}`, "umbrella"},
		{"edited description", "acme/widgets", `{"description":{"from":"x"}}`, ""},
		{"name with a slash", "acme/widgets", `{"repository":{"name":{"from":"a/b"}}}`, ""},
		{"other type", "acme/widgets", `{"repository":7}`, ""},
		{"no changes", "acme/widgets", `null`, ""},
	} {
		var changes map[string]any
		if err := json.Unmarshal([]byte(c.changes), &changes); err != nil {
			t.Fatal(err)
		}
		if got := FormerName(c.repository, map[string]any{"changes": changes}); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	for _, id := range moves.Writes {
		if CatalogueOf("github").Operation(id) == nil {
			t.Errorf("unknown operation %q", id)
		}
	}
}
