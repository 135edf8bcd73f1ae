package policy

import (
	"encoding/json"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
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
		noError(t, json.Unmarshal([]byte(c.changes), &changes))
		testservers.Equal(t, c.name, FormerName(c.repository, map[string]any{"changes": changes}), c.want)
	}
	for _, id := range moves.Writes {
		failIf(t, CatalogueOf("github").Operation(id) == nil, "unknown operation %q", id)
	}
}
