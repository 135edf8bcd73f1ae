package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDebugFieldIsForTrustedClientsOnly(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(38 * time.Microsecond)
		w.Header().Set("Cache-Control", "max-age=60")
		_, _ = fmt.Fprint(w, "text")
	}, identifying(func(id *Identity, r *http.Request) {
		id.Debug = strings.HasSuffix(r.Header.Get("Authorization"), "trusted")
		id.Caller.Client = "evil\nname"
	})).run(t, func(w *world) {
		for _, c := range []struct {
			name, path, token, debug, want string
		}{
			{"miss", "/user/subscriptions", "trusted", "1", `^weir; operation=watching/list-mine; cache=\S+; points=1; resource=core; client=evil\?name; account=account of Bearer trusted; queue=0s; attempt=38us \(200\); settle=0s$`},
			{"hit", "/user/subscriptions", "trusted", "1", `^weir; operation=watching/list-mine; cache=\S+; points=1; resource=core; client=evil\?name; account=account of Bearer trusted$`},
			{"refusal", "/search/code?q=repo:a/b", "trusted", "1", `^weir; operation=search/code; .*; account=account of Bearer trusted$`},
			{"not requested", "/user/subscriptions", "trusted", "", ""},
			{"not trusted", "/user/subscriptions", "another", "1", ""},
		} {
			got := w.get(c.path, "Authorization: Bearer "+c.token, debugHeader+": "+c.debug).Header.Get(debugHeader)
			if c.want == "" && got != "" || !regexp.MustCompile(c.want).MatchString(got) {
				w.Errorf("%s: %q, want %s", c.name, got, c.want)
			}
		}
	})
}

// TestAccessLinesIdentifyQuestions checks that equal questions have equal targets in the access log, and that the path
// has no credential.
func TestAccessLinesIdentifyQuestions(t *testing.T) {
	var log bytes.Buffer
	setup(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"data":{}}`) }, logTo(&log)).run(t, func(w *world) {
		field := func(name string) string {
			_, rest, _ := strings.Cut(log.String(), " "+name+"=")
			value, _, _ := strings.Cut(rest, " ")
			return strings.Trim(value, `"`)
		}
		target := func(method, path, body string) string {
			log.Reset()
			w.do(method, path, strings.NewReader(body), "Authorization: Bearer token-of-client")
			synctest.Wait()
			return field("target")
		}
		first := target(http.MethodGet, "/orgs/acme/members?page=1&per_page=5", "")
		w.want("path", field("path"), "/orgs/acme/members")
		w.want("length of the hash", len(first), 16)
		w.want("same question", target(http.MethodGet, "/orgs/acme/members?per_page=5&page=1", ""), first)
		for name, other := range map[string]string{
			"page":         target(http.MethodGet, "/orgs/acme/members?page=2&per_page=5", ""),
			"organization": target(http.MethodGet, "/orgs/other/members?page=1&per_page=5", ""),
		} {
			if other == first || other == "" {
				w.Errorf("another %s: target %q", name, other)
			}
		}
		query := target(http.MethodPost, "/graphql", `{"query":"{ viewer { login } }"}`)
		if query == "" || query == target(http.MethodPost, "/graphql", `{"query":"{ viewer { name } }"}`) {
			w.Errorf("GraphQL queries have no targets of their own: %q", query)
		}
		w.want("mutation", target(http.MethodPost, "/graphql", `{"query":"mutation { x }"}`), "")
		target(http.MethodGet, "/repos/acme/token-of-client/subscribers", "")
		w.want("path with a credential", field("path"), "/repos/acme/REDACTED/subscribers")
	})
}
