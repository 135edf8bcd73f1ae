// Package admin is the operator's side of a gateway: health, what the accounts
// have left, what the last requests got, the configuration in force, and what
// operators have changed; as JSON, and as a dashboard for browsers.
//
// Invariants:
//   - It only reads, but for reload and purge, and shows no secret: what it shows
//     comes masked from its sources.
//   - Where a token or a client certificate is asked for, nothing but health, and the
//     files of the dashboard, which are the same everywhere, is answered without.
//   - It answers to its own names and to addresses only: a name that somebody else
//     points here (DNS rebinding) is refused.
//   - Paths are matched exactly, as they were sent; a request that changes something
//     is refused when a browser says that it comes from elsewhere.
//   - Every change leaves a line in the [Trail].
//
// It is not the gateway's own listener and must not be reachable by clients.
package admin

import (
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

// Sources are where the pages come from. All are required.
type Sources struct {
	// Ready reports whether clients should come; not any more when the gateway stops.
	Ready func() bool
	// Accounts lists at most so many accounts.
	Accounts func(ctx context.Context, most int) ([]limits.Account, error)
	// Refused returns the credentials of the gateway's that the API refuses.
	Refused func() any
	// Requests returns the last requests, the newest first.
	Requests func() any
	// Config returns the configuration in force, its secrets masked.
	Config func() any
	// Reload reads the configuration anew; on an error the old one stays.
	Reload func() error
	// Cache reports how many keys are held and how many bytes they weigh.
	Cache func() (keys int, bytes uint64)
	// Metrics answers Prometheus.
	Metrics http.Handler
	// Purge makes what is held stale, or drops it, and returns how many entries that
	// concerns.
	Purge func(Purge) (entries int, err error)
	// Trail gets what is changed here, and has what was changed elsewhere.
	Trail *Trail
	// State returns how the gateway is: its store, its queue, what it polls.
	State func() any
	// History is the last hour.
	History *history.History
}

// Purge is what is to be purged: all with a tag (op:ID, repo:OWNER/NAME, org:ORG,
// account:NAME), or one target.
type Purge struct {
	Tag string `json:"tag,omitempty"`
	URL string `json:"url,omitempty"`
	// Hard drops the entries; else they are validated before they are used again.
	Hard bool `json:"hard,omitempty"`
}

// maxBody bounds what a request may say, in bytes.
const maxBody = 64 << 10

// readPurge reads a purge; an error says what is wrong with it.
func readPurge(r io.Reader) (p Purge, err error) {
	d := json.NewDecoder(r)
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

// page is one path, and who answers there.
type page struct {
	method, path string
	about        string
	open         bool // to anyone, whatever is asked of others
	everywhere   bool // by whatever name the listener is called
	answer       http.HandlerFunc
}

// pages are all there is, in the order in which the index lists them.
func pages(g *guard, s Sources) []page {
	ok := func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }
	all := []page{
		{method: http.MethodGet, path: "/healthz", about: "the process is alive", open: true, everywhere: true, answer: ok},
		{method: http.MethodGet, path: "/readyz", about: "it can answer clients, and does not stop", open: true, everywhere: true, answer: func(w http.ResponseWriter, r *http.Request) {
			if !s.Ready() {
				text(w, http.StatusServiceUnavailable, "stopping\n")
				return
			}
			ok(w, r)
		}},
		{method: http.MethodGet, path: "/metrics", about: "for Prometheus", answer: func(w http.ResponseWriter, r *http.Request) { s.Metrics.ServeHTTP(w, r) }},
		{method: http.MethodGet, path: "/api/v1/accounts", about: "what each account has left", answer: s.accounts},
		{method: http.MethodGet, path: "/api/v1/credentials", about: "those that the API refuses, and until when they are not used", answer: func(w http.ResponseWriter, _ *http.Request) { show(w, s.Refused()) }},
		{method: http.MethodGet, path: "/api/v1/requests", about: "the last requests, and what they got", answer: func(w http.ResponseWriter, _ *http.Request) { show(w, s.Requests()) }},
		{method: http.MethodGet, path: "/api/v1/events", about: "what happens, as server-sent events: request, accounts, series, operations, state, skipped; ?only=EVENT, ?most=REQUESTS a second", answer: func(w http.ResponseWriter, r *http.Request) { g.events(s, w, r) }},
		{method: http.MethodGet, path: "/api/v1/series", about: "the last hour, and what operations and clients cost in it; ?account=NAME what its budgets had left", answer: s.series},
		{method: http.MethodGet, path: "/api/v1/state", about: "store, replicas, queue, statistics that are polled", answer: func(w http.ResponseWriter, _ *http.Request) { show(w, s.State()) }},
		{method: http.MethodGet, path: "/api/v1/cache", about: "what the cache holds", answer: s.cache},
		{method: http.MethodGet, path: "/api/v1/config", about: "the configuration in force, secrets masked", answer: func(w http.ResponseWriter, _ *http.Request) { show(w, s.Config()) }},
		{method: http.MethodGet, path: "/api/v1/audit", about: "what operators have changed, the newest first", answer: func(w http.ResponseWriter, _ *http.Request) { show(w, s.Trail.Last()) }},
		{method: http.MethodPost, path: "/api/v1/reload", about: "read the configuration anew", answer: s.reload},
		{method: http.MethodPost, path: "/api/v1/cache/purge", about: `{"tag": T} or {"url": U}, "hard": true: validate anew, or drop, what is held`, answer: s.purge},
		{method: http.MethodPost, path: "/api/v1/login", about: `{"token": TOKEN}: lend a browser a session in its place`, open: true, answer: g.login},
		{method: http.MethodPost, path: "/api/v1/logout", about: "end it", answer: g.logout},
		{method: http.MethodGet, path: "/", about: "the dashboard, for browsers"},
		{method: http.MethodGet, path: "/help", about: "this list"},
	}
	var index strings.Builder
	index.WriteString("Weir, admin\n\n")
	for _, p := range all {
		fmt.Fprintf(&index, "%-4s %-22s %s\n", p.method, p.path, p.about)
	}
	help := func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, index.String()) }
	front := file("index.html")
	all[len(all)-1].answer = help
	all[len(all)-2].answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if reads(r) {
			front(w, r)
			return
		}
		help(w, r)
	}
	all = append(all, page{method: http.MethodGet, path: "/login", open: true, answer: file("login.html")})
	return append(all, assets()...)
}

// Handler returns the admin pages.
func Handler(a Access, s Sources) http.Handler {
	g := &guard{Access: a}
	byPath := map[string]page{}
	for _, p := range pages(g, s) {
		byPath[p.path] = p
	}
	sameOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		harden(w.Header())
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		p, known := byPath[r.URL.EscapedPath()] // as it was sent: what decodes to a path is none
		if !p.everywhere && !a.called(r.Host) {
			fail(w, http.StatusForbidden, fmt.Errorf("%q is no name of this listener; admin.hosts lists those that are", r.Host))
			return
		}
		if !p.open {
			who, ok := g.who(r)
			if !ok {
				g.turnAway(w, r)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), operator{}, who))
		}
		switch {
		case !known:
			text(w, http.StatusNotFound, "404 page not found\n")
		case !slices.Contains(p.methods(), r.Method):
			w.Header().Set("Allow", strings.Join(p.methods(), ", "))
			text(w, http.StatusMethodNotAllowed, "405 method not allowed\n")
		default:
			if err := sameOrigin.Check(r); err != nil {
				fail(w, http.StatusForbidden, err)
				return
			}
			p.answer(w, r)
		}
	})
}

// turnAway says what would let a client in; a browser that wants the dashboard is taken
// to where its user can show the token.
func (g *guard) turnAway(w http.ResponseWriter, r *http.Request) {
	if g.Token != "" && r.URL.EscapedPath() == "/" && reads(r) {
		w.Header().Set("Location", "/login")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="weir admin"`)
	text(w, http.StatusUnauthorized, "the admin token is needed: Authorization: Bearer TOKEN\n")
}

// methods are those that the page answers.
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
	show(w, s.History.Describe(accounts))
}

func (s Sources) cache(w http.ResponseWriter, _ *http.Request) {
	keys, bytes := s.Cache()
	show(w, map[string]any{"keys": keys, "bytes": bytes})
}

func (s Sources) purge(w http.ResponseWriter, r *http.Request) {
	p, err := readPurge(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	what := "purge"
	if p.Hard {
		what = "hard purge"
	}
	entries, err := s.Purge(p)
	s.Trail.record(r, what, p.Tag+p.URL, Outcome(err, fmt.Sprintf("%d entries", entries)))
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	show(w, map[string]any{"entries": entries})
}

func (s Sources) reload(w http.ResponseWriter, r *http.Request) {
	err := s.Reload()
	s.Trail.record(r, "reload", "configuration", Outcome(err, "in force"))
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, err)
		return
	}
	show(w, map[string]any{"reloaded": true})
}

// show answers with JSON for people; tell with more than they would read.
func show(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	answer(w, body, err)
}

func tell(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	answer(w, body, err)
}

func answer(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(append(body, '\n'))
}

func fail(w http.ResponseWriter, status int, err error) { text(w, status, err.Error()+"\n") }

func text(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s))
}
