// Package admin is the operator's side of a gateway: health, what the accounts
// have left, what the last requests got, the configuration in force.
//
// Invariants:
//   - It only reads, but for reload and purge, and shows no secret: what it shows
//     comes masked from its sources.
//   - With a token set, nothing but health is answered without it.
//   - Paths are matched exactly; a request that changes something is refused
//     when a browser says that it comes from elsewhere.
//
// It is not the gateway's own listener and must not be reachable by clients.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/weirgate/weir/limits"
)

// Sources are where the pages come from. All are required.
type Sources struct {
	// Accounts lists at most so many accounts.
	Accounts func(ctx context.Context, most int) ([]limits.Account, error)
	// Requests returns the last requests, the newest first.
	Requests func() any
	// Config returns the configuration in force, its secrets masked.
	Config func() any
	// Reload reads the configuration anew; on an error the old one stays.
	Reload func() error
	// Cache reports how many keys are held and how many bytes they weigh.
	Cache func() (keys int, bytes uint64)
	// Purge makes what is held stale, or drops it, and returns how many entries that
	// concerns.
	Purge func(Purge) (entries int, err error)
}

// Purge is what is to be purged: all with a tag (op:ID, repo:OWNER/NAME, org:ORG,
// account:NAME), or one target.
type Purge struct {
	Tag string `json:"tag,omitempty"`
	URL string `json:"url,omitempty"`
	// Hard drops the entries; else they are validated before they are used again.
	Hard bool `json:"hard,omitempty"`
}

// readPurge reads a purge; an error says what is wrong with it.
func readPurge(r io.Reader) (p Purge, err error) {
	d := json.NewDecoder(io.LimitReader(r, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf(`write {"tag": T} or {"url": U}, and "hard": true if it is to be dropped: %w`, err)
	}
	if (p.Tag == "") == (p.URL == "") {
		return p, errors.New("one of tag and url is needed")
	}
	return p, nil
}

// maxAccounts bounds one listing.
const maxAccounts = 1000

// index is the page at "/".
const index = `Weir, admin

GET  /healthz           the process is alive
GET  /readyz            it can answer clients
GET  /api/v1/accounts   what each account has left
GET  /api/v1/requests   the last requests, and what they got
GET  /api/v1/cache      what the cache holds
GET  /api/v1/config     the configuration in force, secrets masked
POST /api/v1/reload     read the configuration anew
POST /api/v1/cache/purge   {"tag": T} or {"url": U}, "hard": true: validate anew, or drop, what is held
`

// Handler returns the admin pages. An empty token asks for none: that is for a
// listener on loopback only.
func Handler(token string, s Sources) http.Handler {
	open := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }
	open.HandleFunc("GET /healthz", ok)
	open.HandleFunc("GET /readyz", ok)

	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, index) })
	pages.HandleFunc("GET /api/v1/accounts", func(w http.ResponseWriter, r *http.Request) {
		accounts, err := s.Accounts(r.Context(), maxAccounts)
		if err != nil {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		show(w, accounts)
	})
	pages.HandleFunc("GET /api/v1/requests", func(w http.ResponseWriter, _ *http.Request) { show(w, s.Requests()) })
	pages.HandleFunc("GET /api/v1/config", func(w http.ResponseWriter, _ *http.Request) { show(w, s.Config()) })
	pages.HandleFunc("GET /api/v1/cache", func(w http.ResponseWriter, _ *http.Request) {
		keys, bytes := s.Cache()
		show(w, map[string]any{"keys": keys, "bytes": bytes})
	})
	pages.HandleFunc("POST /api/v1/cache/purge", func(w http.ResponseWriter, r *http.Request) {
		p, err := readPurge(r.Body)
		if err == nil {
			var n int
			if n, err = s.Purge(p); err == nil {
				show(w, map[string]any{"entries": n})
				return
			}
		}
		fail(w, http.StatusBadRequest, err)
	})
	pages.HandleFunc("POST /api/v1/reload", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Reload(); err != nil {
			fail(w, http.StatusUnprocessableEntity, err)
			return
		}
		show(w, map[string]any{"reloaded": true})
	})
	open.Handle("/", guard(token, http.NewCrossOriginProtection().Handler(pages)))
	return open
}

// guard asks for the token, compared in constant time.
func guard(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(shown))
		if subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="weir admin"`)
			text(w, http.StatusUnauthorized, "the admin token is needed: Authorization: Bearer TOKEN\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func show(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n'))
}

func fail(w http.ResponseWriter, status int, err error) { text(w, status, err.Error()+"\n") }

func text(w http.ResponseWriter, status int, s string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s))
}
