// Package admin serves the operators of a gateway, with JSON and a dashboard. The data are health checks, accounts,
// recent requests, the configuration in force and the audit trail.
//
// Invariants:
//   - Only reload, purge and the opening of an account change the gateway. No response contains a secret, because the sources mask secrets.
//   - If a token or client certificates are configured, only health checks and the static files of the dashboard are
//     served without authentication.
//   - The text of a request never reaches Prometheus, and the token for Prometheus reaches only its URL.
//   - The Host header must be a configured name, localhost or an IP address, which prevents DNS rebinding.
//   - Paths are matched exactly as they were sent. Cross-origin requests of browsers cannot change the gateway.
//   - Every change is recorded in the [Trail].
//
// Entry point: [Handler]. Clients of the gateway must not reach the listener of the handler.
package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
)

// Sources provide the data of the pages. All fields are required.
type Sources struct {
	Ready    func() bool                                                    // whether the gateway accepts clients; false during shutdown
	Accounts func(ctx context.Context, limit int) ([]limits.Account, error) // at most limit accounts
	Refused  func() any                                                     // the gateway's credentials that the upstream rejects
	Requests func() any                                                     // recent requests, newest first
	Config   func() any                                                     // the configuration in force, with masked secrets
	Defaults func() any                                                     // the configuration of an empty file
	Reload   func() error                                                   // after an error the previous configuration stays in force
	Cache    func() (keys int, bytes uint64)                                // size of the memory tier
	Metrics  http.Handler                                                   // serves /metrics
	Purge    func(Purge) (entries int, err error)                           // purges cache entries and returns their number
	Open     func(ctx context.Context, account string) error                // opens a closed account
	Trail    *Trail                                                         // records the changes
	State    func() any                                                     // store, queue and polls
	History  *history.History                                               // the last hour

	Prometheus func() Prometheus // the server of the trends, without a URL if none is configured
}

// Purge selects cache entries: all entries with a tag (op:ID, repo:OWNER/NAME, org:ORG, account:NAME), or the entries
// of one URL.
type Purge struct {
	Tag string `json:"tag,omitempty"`
	URL string `json:"url,omitempty"`
	// Hard removes the entries. Otherwise they are revalidated before their next use.
	Hard bool `json:"hard,omitempty"`
}

// Open selects the account to open.
type Open struct {
	Account string `json:"account"`
}

// maxBody bounds a request body, in bytes.
const maxBody = 64 << 10

// maxAccounts bounds one listing.
const maxAccounts = 1000

// page is one endpoint.
type page struct {
	method, path string
	description  string
	public       bool // served without authentication
	anyHost      bool // served for any Host header
	serve        http.HandlerFunc
}

// pages returns all endpoints in the order of the index.
func pages(g *guard, s Sources) []page {
	ok := func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }
	all := []page{
		{method: http.MethodGet, path: "/healthz", description: "the process is alive", public: true, anyHost: true, serve: ok},
		{method: http.MethodGet, path: "/readyz", description: "the gateway accepts clients", public: true, anyHost: true, serve: func(w http.ResponseWriter, r *http.Request) {
			if !s.Ready() {
				text(w, http.StatusServiceUnavailable, "stopping\n")
				return
			}
			ok(w, r)
		}},
		{method: http.MethodGet, path: "/metrics", description: "metrics for Prometheus", serve: func(w http.ResponseWriter, r *http.Request) { s.Metrics.ServeHTTP(w, r) }},
		{method: http.MethodGet, path: "/api/v1/accounts", description: "remaining budgets of each account", serve: s.accounts},
		{method: http.MethodGet, path: "/api/v1/credentials", description: "credentials in quarantine, because the upstream rejects them", serve: func(w http.ResponseWriter, _ *http.Request) { writeIndented(w, s.Refused()) }},
		{method: http.MethodGet, path: "/api/v1/requests", description: "recent requests with their outcome", serve: func(w http.ResponseWriter, _ *http.Request) { writeIndented(w, s.Requests()) }},
		{method: http.MethodGet, path: "/api/v1/events", description: "server-sent events: request, accounts, series, operations, state, audit, skipped; ?only=EVENT, ?rate=REQUESTS per second", serve: func(w http.ResponseWriter, r *http.Request) { g.events(s, w, r) }},
		{method: http.MethodGet, path: "/api/v1/series", description: "the last hour with costs of operations, clients and tags; ?account=NAME for its budgets over time", serve: s.series},
		{method: http.MethodGet, path: "/api/v1/trends", description: "series of ?range=1d, 7d or 30d from Prometheus, over all replicas", serve: newTrends(s.Prometheus).serve},
		{method: http.MethodGet, path: "/api/v1/state", description: "store, replicas, queue, polled statistics", serve: func(w http.ResponseWriter, _ *http.Request) { writeIndented(w, s.State()) }},
		{method: http.MethodGet, path: "/api/v1/cache", description: "size of the cache", serve: s.cache},
		{method: http.MethodGet, path: "/api/v1/config", description: "configuration in force, with masked secrets", serve: func(w http.ResponseWriter, _ *http.Request) { writeIndented(w, s.Config()) }},
		{method: http.MethodGet, path: "/api/v1/config/defaults", description: "defaults of the configuration", serve: func(w http.ResponseWriter, _ *http.Request) { writeIndented(w, s.Defaults()) }},
		{method: http.MethodGet, path: "/api/v1/audit", description: "audit trail, newest first", serve: func(w http.ResponseWriter, _ *http.Request) { writeIndented(w, s.Trail.Last()) }},
		{method: http.MethodPost, path: "/api/v1/reload", description: "reload the configuration", serve: s.reload},
		{method: http.MethodPost, path: "/api/v1/cache/purge", description: `purge the cache: {"tag": T} or {"url": U}, "hard": true to remove entries`, serve: s.purge},
		{method: http.MethodPost, path: "/api/v1/accounts/open", description: `open a closed account, or end its cool-down or its exhausted windows: {"account": NAME}`, serve: s.open},
		{method: http.MethodPost, path: "/api/v1/login", description: `start a browser session: {"token": TOKEN}`, public: true, serve: g.login},
		{method: http.MethodPost, path: "/api/v1/logout", description: "end the browser session", serve: g.logout},
		{method: http.MethodGet, path: "/", description: "the dashboard, for browsers"},
		{method: http.MethodGet, path: "/help", description: "this list"},
	}
	var index strings.Builder
	index.WriteString("Weir, admin\n\n")
	for _, p := range all {
		fmt.Fprintf(&index, "%-6s %-22s %s\n", p.method, p.path, p.description)
	}
	help := func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, index.String()) }
	dashboard := file("index.html")
	all[len(all)-1].serve = help
	all[len(all)-2].serve = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if acceptsHTML(r) {
			dashboard(w, r)
			return
		}
		help(w, r)
	}
	all = append(all, page{method: http.MethodGet, path: "/login", public: true, serve: file("login.html")})
	return append(all, assets()...)
}

// Handler returns the handler of the admin listener.
func Handler(a Access, s Sources) http.Handler {
	g := &guard{Access: a, trail: s.Trail, sessions: newSessions(), guesses: newGuesses()}
	byPath := map[string][]page{} // pages with one path differ in their methods only
	for _, p := range pages(g, s) {
		byPath[p.path] = append(byPath[p.path], p)
	}
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		path := r.URL.EscapedPath() // not decoded: an encoded path does not match
		found := byPath[path]
		if i := strings.LastIndexByte(path, '/') + 1; found == nil && i < len(path) {
			r.SetPathValue("id", path[i:])
			found = byPath[path[:i]+"{id}"]
		}
		p, allowed := choose(found, r.Method)
		if !p.anyHost && !a.allowsHost(r.Host) {
			fail(w, http.StatusForbidden, fmt.Errorf("host %q not allowed; add it to admin.hosts", r.Host))
			return
		}
		if !p.public {
			name, err := g.authenticate(r)
			if err != nil {
				g.reject(w, r, err)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), operatorKey{}, name))
		}
		switch {
		case len(found) == 0:
			text(w, http.StatusNotFound, "404 page not found\n")
		case !slices.Contains(allowed, r.Method):
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			text(w, http.StatusMethodNotAllowed, "405 method not allowed\n")
		default:
			if err := crossOrigin.Check(r); err != nil {
				fail(w, http.StatusForbidden, err)
				return
			}
			if p.method != http.MethodGet {
				body, err := io.ReadAll(r.Body) // an incomplete request changes nothing
				if err != nil {
					fail(w, http.StatusBadRequest, fmt.Errorf("read request body: %w", err))
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			p.serve(w, r)
		}
	})
}

// choose returns the page for a method, or the first page, and the methods of all pages of a path.
func choose(found []page, method string) (p page, allowed []string) {
	for i, c := range found {
		if i == 0 || slices.Contains(c.methods(), method) {
			p = c
		}
		allowed = append(allowed, c.methods()...)
	}
	return p, allowed
}

// reject responds with 401 or 429, or redirects a browser to the login page.
func (g *guard) reject(w http.ResponseWriter, r *http.Request, err error) {
	if g.Token != "" && r.URL.EscapedPath() == "/" && acceptsHTML(r) {
		w.Header().Set("Location", "/login")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="weir admin"`)
	refuseToken(w, err)
}

// methods returns the allowed methods.
func (p page) methods() []string {
	if p.method == http.MethodGet {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{p.method}
}

func (s Sources) accounts(w http.ResponseWriter, r *http.Request) {
	accounts, err := s.Accounts(r.Context(), maxAccounts)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	writeIndented(w, s.History.Describe(accounts))
}

func (s Sources) cache(w http.ResponseWriter, _ *http.Request) {
	keys, bytes := s.Cache()
	writeIndented(w, map[string]any{"keys": keys, "bytes": bytes})
}

func (s Sources) purge(w http.ResponseWriter, r *http.Request) {
	var p Purge
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf(`invalid purge; send {"tag": T} or {"url": U}, optionally with "hard": true: %w`, err))
		return
	}
	if (p.Tag == "") == (p.URL == "") {
		fail(w, http.StatusBadRequest, errors.New("invalid purge; send either tag or url"))
		return
	}
	action := "purge"
	if p.Hard {
		action = "hard purge"
	}
	entries, err := s.Purge(p)
	s.Trail.record(r, action, p.Tag+p.URL, Outcome(err, fmt.Sprintf("%d entries", entries)))
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	writeIndented(w, map[string]any{"entries": entries})
}

func (s Sources) open(w http.ResponseWriter, r *http.Request) {
	var o Open
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf(`invalid account; send {"account": NAME}: %w`, err))
		return
	}
	if o.Account == "" {
		fail(w, http.StatusBadRequest, errors.New(`invalid account; send {"account": NAME}`))
		return
	}
	err := s.Open(r.Context(), o.Account)
	s.Trail.record(r, "open account", o.Account, Outcome(err, "opened"))
	switch {
	case errors.Is(err, limits.ErrNotClosed):
		fail(w, http.StatusBadRequest, fmt.Errorf("open account %q: %w", o.Account, err))
	case err != nil:
		fail(w, http.StatusServiceUnavailable, err)
	default:
		writeIndented(w, map[string]any{"opened": true})
	}
}

func (s Sources) reload(w http.ResponseWriter, r *http.Request) {
	err := s.Reload()
	s.Trail.record(r, "reload", "configuration", Outcome(err, "in force"))
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, err)
		return
	}
	writeIndented(w, map[string]any{"reloaded": true})
}

// writeIndented writes JSON for people.
func writeIndented(w http.ResponseWriter, v any) { writeJSON(w, v, "  ") }

func writeJSON(w http.ResponseWriter, v any, indent string) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(v); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(body.Bytes())
}

func fail(w http.ResponseWriter, status int, err error) { text(w, status, err.Error()+"\n") }

func text(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s))
}
