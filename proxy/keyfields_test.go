package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/weirgate/weir/policy"
)

// TestForwardedFieldsAreInTheKey sends each field that is forwarded for known operations with two values. The second request gets
// no stored response to the first, unless the upstream got the same field in both.
func TestForwardedFieldsAreInTheKey(t *testing.T) {
	// Cache-Control and conditions select among stored responses, and Range selects a part of one.
	selecting := []string{"Cache-Control", "Pragma", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Range"}
	for i, dialect := range []option{func(*Config) {}, github} {
		names := append([]string{
			"Foo", "Prefer", "Te", "Accept", "Accept-Language", "X-Foo", "X-Service-Api-Version", "X-GitHub-Api-Version", "GraphQL-Features",
			"X-MCP-Readonly", "Referer", "Origin", "X_Request_Id", "X-Api-Key", "Private-Token",
		}, policy.StandardFields...)
		for _, name := range names {
			if slices.Contains(selecting, name) || name == "User-Agent" && i == 0 {
				continue // the documents give User-Agent no meaning; only the dialect github formats for browsers
			}
			for _, path := range []string{"/repos/acme/widgets/subscribers", "/gitignore/templates"} {
				echo := func(w http.ResponseWriter, r *http.Request) {
					setFields(w, "Cache-Control: private, max-age=60", "Content-Type: application/json")
					_, _ = fmt.Fprintf(w, "%q", r.Header.Values(name))
				}
				setup(echo, dialect).sub(t, name+path, func(w *world) {
					first := w.get(path, owner, name+": Mozilla/5.0 one")
					second := w.get(path, owner, name+": two")
					failIf(w, second.body == first.body && first.body == `["Mozilla/5.0 one"]`, "the second request got the response to %s with %s", first.body, second.Header.Get("Cache-Status"))
				})
			}
		}
	}
}
