package wholeapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Config configures a [Service]. The zero value is useful, except for Limits.
type Config struct {
	Limits policy.Limits
	// Product selects the operations of the table. The default is "cloud".
	Product string
	// Tokens are the accepted credentials. The default is [DefaultTokens].
	Tokens []Token
	// Resources replaces limits of resources besides core, search and code_search, by name.
	Resources map[string]policy.Window
	// Unlisted assigns operations, by ID, to resources that no documentation names.
	Unlisted map[string]Resource
	// NoRateLimits disables all limits and their headers, like a self-hosted server.
	NoRateLimits bool
	// ETagsPerToken includes Accept, Authorization and Cookie in ETags, like the real API.
	ETagsPerToken bool
	// Latency is the maximum of two random delays: before a request is answered from the state, and afterwards.
	Latency time.Duration
	// StatisticsDelay is the time until statistics are computed. The default is 1.5 s.
	StatisticsDelay time.Duration
	// Downloads is the URL of the server for archives, logs and files. The default is https://downloads.example.com.
	Downloads string
}

// Kind is the kind of a caller.
type Kind string

// The kinds of callers.
const (
	Anonymous    Kind = "anonymous"
	User         Kind = "user"
	Installation Kind = "installation"
	App          Kind = "app"
)

// Token is an accepted credential. Tokens with one kind and login share their limits.
type Token struct {
	Value string
	Kind  Kind
	// Login is the name of the user, of the organization of the installation, or of the app.
	Login string
}

// DefaultTokens returns the credentials of the default state.
func DefaultTokens() []Token {
	return []Token{
		{"tok-owner", User, "acme-owner"}, {"tok-owner-2", User, "acme-owner"}, {"tok-member", User, "acme-member"},
		{"tok-outsider", User, "outsider"}, {"tok-app", Installation, "acme"}, {"tok-jwt", App, "builder"},
	}
}

type caller struct {
	kind    Kind
	login   string
	account string // what the limits count against
}

// Service is an [http.Handler] that plays all operations of one product.
type Service struct {
	config Config
	router *router
	meter  *meter

	mu      sync.Mutex // guards the fields below
	world   *world
	changes *changes
	events  []Event
	jobs    map[string]time.Time // the end of statistics jobs, by path
	random  *mathrand.Rand
}

// New returns a service with new state.
func New(c Config) (*Service, error) {
	c.Product = cmp.Or(c.Product, "cloud")
	c.StatisticsDelay = cmp.Or(c.StatisticsDelay, 1500*time.Millisecond)
	c.Downloads = cmp.Or(c.Downloads, "https://downloads.example.com")
	if c.Tokens == nil {
		c.Tokens = DefaultTokens()
	}
	router, err := routerOf(c.Product)
	if err != nil {
		return nil, err
	}
	for id := range c.Unlisted {
		if router.byID[id] == nil {
			return nil, fmt.Errorf("resource %s: no operation of %s has the ID %q", c.Unlisted[id].Name, c.Product, id)
		}
	}
	s := &Service{
		config: c, router: router, changes: newChanges(), jobs: map[string]time.Time{},
		meter:  &meter{limits: c.Limits, override: c.Resources, unlisted: c.Unlisted, off: c.NoRateLimits, usages: map[string]*usage{}, violations: noViolations()},
		random: mathrand.New(mathrand.NewPCG(1, 2)),
	}
	s.world = newWorld(time.Now().UTC().Truncate(time.Second))
	return s, nil
}

// Violations is the result of [Service.Violations] and the response to GET /_service/violations.
type Violations struct {
	// Violations counts requests that were refused because they exceeded a limit.
	Violations int `json:"violations"`
	// SentWhileLimited counts requests that arrived during the waiting time of an earlier refusal.
	SentWhileLimited int `json:"sent_while_limited"`
	// MaxConcurrent is the maximum number of concurrent requests of one account.
	MaxConcurrent int `json:"max_concurrent"`
	// Banned reports whether an account has been banned.
	Banned bool `json:"banned"`
	// ByLimit counts the violations of each limit.
	ByLimit map[string]int `json:"by_limit"`
	// Highest is the highest sum of each limit in any window.
	Highest map[string]Highest `json:"highest"`
	// Answered counts the charged requests of each resource.
	Answered map[string]int `json:"answered"`
	// StaleReads counts the reads that were older than an own write.
	StaleReads int `json:"stale_reads"`
}

// Highest is the highest sum of a limit, and the limit.
type Highest struct {
	Sum   int `json:"sum"`
	Limit int `json:"limit"`
}

// Violations returns the violations and sums since the start or the last reset.
func (s *Service) Violations() Violations { return s.meter.report() }

// Reset resets the violations and all spending.
func (s *Service) Reset() { s.meter.reset() }

// Operations returns the operations that the service plays, in the order of the table.
func (s *Service) Operations() []*Operation { return slices.Clone(s.router.operations) }

// Match returns the operation of a request with a method and an escaped path, or nil.
func (s *Service) Match(method, escapedPath string) *Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, _ := s.route(method, escapedPath)
	return op
}

// doc is a JSON object.
type doc = map[string]any

// request is a request with its operation, parameters and caller.
type request struct {
	*http.Request
	op     *Operation // nil if no operation has the path
	params map[string]string
	path   string // the canonical path
	caller caller
	query  url.Values
	raw    []byte
	body   doc // the raw body if it is a JSON object
	base   string
	now    time.Time
	seq    int64    // the number of this write
	topics []string // what this write changed
	repo   *repository
}

// touch records topics that a successful write changes.
func (r *request) touch(topics ...string) { r.topics = append(r.topics, topics...) }

// response is a response before it is written.
type response struct {
	status   int
	body     any
	list     []any  // instead of body: the elements of all pages
	text     []byte // instead of body, with kind as its Content-Type
	kind     string
	link     string
	location string
	volatile bool // must not be cached
	modified time.Time
	revision int64
}

// maxBody is the maximum size of a request body in bytes.
const maxBody = 1 << 20

// ServeHTTP parses, counts and answers one request. Requests below /_service/ are not counted.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, controlPrefix) {
		s.serveControl(w, r)
		return
	}
	req := &request{Request: r, base: "http://" + r.Host, now: time.Now().UTC()}
	if r.TLS != nil {
		req.base = "https://" + r.Host
	}
	req.query, _ = url.ParseQuery(r.URL.RawQuery) // an invalid parameter is ignored
	req.raw, _ = io.ReadAll(io.LimitReader(r.Body, maxBody))
	_ = json.Unmarshal(req.raw, &req.body) // other bodies are not JSON objects
	s.mu.Lock()
	req.op, req.params = s.route(r.Method, r.URL.EscapedPath())
	s.mu.Unlock()
	setCommonHeaders(w.Header(), req)
	if refused := s.authenticate(req); refused != nil {
		s.write(w, req, nil, s.encode(req, *refused, 0))
		return
	}
	ticket := s.meter.arrive(req.caller)
	defer ticket.leave()
	ticket.count(req.caller, req.op, r.Method)
	if ticket.refusal != "" {
		s.write(w, req, ticket, s.encode(req, limitError(ticket), 0))
		return
	}
	s.delay(r.Context())
	resp := s.answer(req, ticket)
	s.delay(r.Context())
	s.write(w, req, ticket, resp)
}

// delay waits for a random time, at most Config.Latency.
func (s *Service) delay(ctx context.Context) {
	if s.config.Latency <= 0 {
		return
	}
	s.mu.Lock()
	timer := time.NewTimer(time.Duration(s.random.Int64N(int64(s.config.Latency) + 1)))
	s.mu.Unlock()
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// route returns the operation and the parameters of a request. Paths by number match the operation of the path by name.
func (s *Service) route(method, escapedPath string) (*Operation, map[string]string) {
	path, ok := decode(escapedPath)
	if !ok {
		return nil, nil
	}
	op, values := s.router.match(method, path)
	if op == nil {
		op, values = s.router.match(method, s.world.byName(path))
	}
	return op, values
}

func decode(escapedPath string) ([]string, bool) {
	path := strings.Split(strings.TrimPrefix(escapedPath, "/"), "/")
	for i, part := range path {
		var err error
		if path[i], err = url.PathUnescape(part); err != nil {
			return nil, false
		}
	}
	return path, true
}

// versions are the API versions.
var versions = []string{"2022-11-28", "2026-03-10"}

const (
	versionHeader = "X-Github-Api-Version"
	documentation = "https://docs.example.com/rest"
)

// authenticate sets the caller. It returns the response to an unknown token or version, which costs nothing.
func (s *Service) authenticate(r *request) *response {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "basic") {
		_, token, _ = r.BasicAuth()
	}
	if scheme == "" {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		r.caller = caller{Anonymous, "", "address:" + host}
	} else {
		at := slices.IndexFunc(s.config.Tokens, func(t Token) bool { return t.Value == token })
		if at < 0 {
			return refuse(http.StatusUnauthorized, "Bad credentials")
		}
		t := s.config.Tokens[at]
		r.caller = caller{t.Kind, t.Login, string(t.Kind) + ":" + t.Login}
	}
	if v := r.Header.Get(versionHeader); v != "" && !slices.Contains(versions, v) {
		return refuse(http.StatusBadRequest, "Unsupported API version "+v+": must be one of "+strings.Join(versions, ", "))
	}
	private := r.op != nil && (isMine(r.op.view) || !isRead(r.Method) || strings.HasPrefix(r.op.view, "/search/code"))
	if r.caller.kind == Anonymous && private {
		return refuse(http.StatusUnauthorized, "Requires authentication")
	}
	return nil
}

func refuse(status int, message string) *response {
	resp := fail(status, message)
	return &resp
}

func isRead(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// answer returns the encoded response to a counted request. It applies writes to the state.
func (s *Service) answer(r *request, t *ticket) response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.op == nil {
		return s.encode(r, fail(http.StatusNotFound, "Not Found"), 0)
	}
	isVisible := s.resolve(r)
	handle := s.generic
	if h := handlers[r.op.ID]; h != nil {
		handle = func(r *request) response { return h(s, r) }
	}
	switch {
	case r.op.ID == rateLimitID:
		handle = func(r *request) response { return s.rateLimit(r, t) }
	case !isVisible:
		handle = func(*request) response { return fail(http.StatusNotFound, "Not Found") }
	case r.op.noApps && r.caller.kind == Installation:
		handle = func(*request) response { return fail(http.StatusForbidden, "Resource not accessible by integration") }
	}
	if isRead(r.Method) {
		resp := handle(r)
		return s.encode(r, resp, s.changes.revision(s.topicsOf(r)))
	}
	if isVisible {
		s.touchKinds(r) // before and after the change
	}
	r.seq = s.changes.last + 1
	resp := handle(r)
	if resp.status >= 400 || r.seq == 0 {
		return s.encode(r, resp, 0)
	}
	s.touchKinds(r)
	s.touchTree(r)
	s.touchEffects(r)
	if r.repo != nil && slices.Contains(r.topics, r.repo.path()) {
		s.touchRepo(r)
	}
	s.changes.last = r.seq
	for _, topic := range r.topics {
		s.changes.touch(r.seq, topic)
	}
	return s.encode(r, resp, r.seq)
}

// encode turns the body of a response into text with a revision.
func (s *Service) encode(r *request, resp response, revision int64) response {
	resp.revision = revision
	if resp.list != nil {
		s.page(r, &resp)
	}
	if resp.status == http.StatusNoContent || resp.status == http.StatusResetContent {
		resp.body = nil
	}
	if resp.body != nil {
		resp.text, _ = json.Marshal(resp.body) // documents hold only JSON values
		resp.kind = "application/json; charset=utf-8"
	}
	if resp.text != nil {
		resp.text = mark(resp.text, revision)
	}
	return resp
}

func fail(status int, message string) response {
	body := doc{"message": message, "documentation_url": documentation, "status": strconv.Itoa(status)}
	return response{status: status, body: body, volatile: status != http.StatusNotFound}
}

// limitError returns the response to a request that exceeded a limit.
func limitError(t *ticket) response {
	message := "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
	switch t.refusal {
	case "primary":
		message = "API rate limit exceeded."
	case "banned":
		message = "Your account was suspended because it sent requests while it was limited."
	}
	return fail(http.StatusForbidden, message)
}

func (s *Service) rateLimit(r *request, t *ticket) response {
	if s.config.NoRateLimits {
		return fail(http.StatusNotFound, "Rate limiting is not enabled.")
	}
	return response{status: http.StatusOK, body: t.status(r.caller, r.version() == versions[0]), volatile: true}
}

func (r *request) version() string { return cmp.Or(r.Header.Get(versionHeader), versions[0]) }

func setCommonHeaders(h http.Header, r *request) {
	h.Set("X-Github-Request-Id", rand.Text())
	h.Set("X-Github-Media-Type", "github.v3; format=json")
	h.Set("X-Github-Api-Version-Selected", r.version())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=60, s-maxage=60")
	h.Set("Vary", "Accept, Accept-Encoding, X-Requested-With")
	if r.Header.Get("Authorization") != "" {
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
		h.Set("Vary", "Accept, Authorization, Cookie, X-GitHub-OTP, Accept-Encoding, X-Requested-With")
	}
}

// RevisionHeader is the response header with the revision. Responses with a body carry the revision there, too.
const RevisionHeader = "X-Github-Revision"

// write sets the remaining headers and writes a response. A matching If-None-Match turns it into a 304.
func (s *Service) write(w http.ResponseWriter, r *request, t *ticket, resp response) {
	h, body := w.Header(), resp.text
	h.Set(RevisionHeader, strconv.FormatInt(resp.revision, 10))
	if body != nil {
		h.Set("Content-Type", resp.kind)
	}
	if resp.link != "" {
		h.Set("Link", resp.link)
	}
	if resp.location != "" {
		h.Set("Location", resp.location)
	}
	if resp.volatile || resp.status == http.StatusAccepted {
		h.Set("Cache-Control", "no-cache")
	}
	if resp.status == http.StatusOK && isRead(r.Method) {
		tag := s.entityTag(r, body)
		h.Set("Etag", tag)
		if !resp.modified.IsZero() {
			h.Set("Last-Modified", resp.modified.UTC().Format(http.TimeFormat))
		}
		if matches(r.Header.Values("If-None-Match"), tag) {
			resp.status, body = http.StatusNotModified, nil
			h.Del("Content-Type")
			if r.caller.kind != Anonymous {
				t.refund()
			}
		}
	}
	if t != nil {
		t.writeHeaders(h)
	}
	if body != nil {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(resp.status)
	_, _ = w.Write(body) // the client may be gone
}

// entityTag returns the strong ETag of a representation.
func (s *Service) entityTag(r *request, body []byte) string {
	sum := sha256.New()
	if s.config.ETagsPerToken {
		for _, name := range []string{"Accept", "Authorization", "Cookie"} {
			if value := r.Header.Get(name); value != "" {
				_, _ = io.WriteString(sum, value+":") // a hash returns no error
			}
		}
	}
	_, _ = sum.Write(body)
	return `"` + hex.EncodeToString(sum.Sum(nil)) + `"`
}

func matches(ifNoneMatch []string, tag string) bool {
	for member := range strings.SplitSeq(strings.Join(ifNoneMatch, ","), ",") {
		member = strings.TrimPrefix(strings.TrimSpace(member), "W/")
		if member == "*" || member == tag {
			return true
		}
	}
	return false
}

// page sets the body to the requested page of a list, and the links to the other pages.
func (s *Service) page(r *request, resp *response) {
	total, shown := len(resp.list), resp.list
	if r.op.paging != "" {
		name := map[string]string{"page": "page", "cursor": "after"}[r.op.paging]
		size, page := min(number(r.query.Get("per_page"), 30), 100), number(r.query.Get(name), 1)
		from, last := min((page-1)*size, total), max(1, (total+size-1)/size)
		shown = shown[from:min(from+size, total)]
		var links []string
		for _, link := range []struct {
			rel  string
			page int
			has  bool
		}{{"prev", page - 1, page > 1}, {"next", page + 1, page < last}, {"last", last, page < last && name == "page"}, {"first", 1, page > 1}} {
			if link.has {
				query := maps.Clone(r.query)
				query.Set(name, strconv.Itoa(link.page))
				links = append(links, "<"+r.base+s.world.byNumber(r.path)+"?"+query.Encode()+`>; rel="`+link.rel+`"`)
			}
		}
		resp.link = strings.Join(links, ", ")
	}
	resp.body = shown
	if key := r.op.wrapper(); key != "" {
		wrapped := doc{"total_count": total, key: shown}
		if r.op.category == search {
			wrapped["incomplete_results"] = false
		}
		resp.body = wrapped
	}
}

// number returns a positive number, or otherwise the default.
func number(text string, or int) int {
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return n
	}
	return or
}
