package proxy

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDebugFieldIsForTrustedClientsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(38 * time.Microsecond)
			w.Header().Set("Cache-Control", "max-age=60")
			_, _ = fmt.Fprint(w, "text")
		}, func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				id, err := identifyByToken(r)
				id.Debug = strings.HasSuffix(r.Header.Get("Authorization"), "trusted")
				id.Caller.Client = "evil\nname"
				return id, err
			}
		})
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
				t.Errorf("%s: %q, want %s", c.name, got, c.want)
			}
		}
	})
}
