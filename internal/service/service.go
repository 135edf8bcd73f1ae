package service

import (
	"bytes"
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

// Config configures a [Service].
type Config struct {
	Limits policy.Limits
	// Seed determines the initial state.
	Seed uint64
	// Dialect determines the names of headers and media types. The default is "github".
	Dialect *policy.Dialect
	// Product selects the operations of the table. The default is "cloud".
	Product string
	// Resources replaces the limits of resources, by name.
	Resources map[string]policy.Window
	// Unlisted assigns operations, by ID, to resources that no documentation names.
	Unlisted map[string]Resource
	// NoRateLimits disables all limits and their headers, like a self-hosted server.
	NoRateLimits bool
	// StatisticsDelay is the duration of a statistics job. The default is 1.5 s.
	StatisticsDelay time.Duration
	// Cooldown is the duration of the cool-down after a secondary limit error, and the value of Retry-After. The default
	// is one minute.
	Cooldown time.Duration
	// Quirks are active from the start.
	Quirks quirk.Set

	// Dial connects to the receivers of webhook deliveries. The default uses the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Service is an [http.Handler] that implements the API and is safe for concurrent use.
type Service struct {
	config   Config
	router   *router
	meter    *meter
	quirks   *quirk.State
	controls http.Handler
	jobs     sync.WaitGroup
	stop     context.CancelFunc
	running  context.Context

	mu        sync.Mutex // guards the next fields
	world     *world
	changes   *changes
	events    []Event
	stats     map[statisticsKey]any // nil while the job runs
	hooks     []*hook
	lastHook  int // ID of the newest webhook
	lastEvent int // number of the newest event

	eventMu    sync.Mutex // serializes events; lock it before mu
	deliveries *deliveryQueue
}

// New returns a service with new state. Call [Service.Close] to release its goroutines.
func New(c Config) (*Service, error) {
	c.StatisticsDelay, c.Cooldown = cmp.Or(c.StatisticsDelay, 1500*time.Millisecond), cmp.Or(c.Cooldown, time.Minute)
	c.Product = cmp.Or(c.Product, "cloud")
	if c.Dialect == nil {
		var err error
		if c.Dialect, err = policy.LoadDialect("github"); err != nil {
			return nil, err
		}
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
		config: c, router: router, meter: newMeter(c),
		world: seed(c.Seed, time.Now(), c.Dialect.SecurityBot), changes: newChanges(), stats: map[statisticsKey]any{},
	}
	s.quirks = quirk.New(c.Seed, c.Quirks, quirk.Hooks{RevisionHeader: RevisionHeader, ChangedSince: s.changedSince, Mark: mark})
	s.controls = s.control()
	app := s.world.tokens["tok-app"]
	app.coreLimit = s.meter.installationLimit(s.world.installationSize("acme"))
	s.world.tokens["tok-app"] = app
	s.running, s.stop = context.WithCancel(context.Background())

	s.deliveries = newDeliveryQueue(c.Dial)
	s.jobs.Go(func() { s.deliveries.run(s.running) })
	return s, nil
}

// Close stops the background jobs and waits for them. Later requests start no jobs.
func (s *Service) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.jobs.Wait()
}

// Violations is the result of [Service.Violations] and the response to GET /_service/violations.
type Violations struct {
	// Violations counts requests that were refused because they exceeded a limit.
	Violations int `json:"violations"`
	// SentWhileLimited counts requests that arrived during the waiting time of an earlier refusal.
	SentWhileLimited int `json:"sent_while_limited"`
	// MaxConcurrent is the maximum number of concurrent requests of one caller.
	MaxConcurrent int `json:"max_concurrent"`
	// Banned reports whether a caller has been banned.
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

// Operations returns the operations of the table, in its order.
func (s *Service) Operations() []*Operation { return slices.Clone(s.router.operations) }

// Match returns the operation of a request with a method and an escaped path, or nil.
func (s *Service) Match(method, escapedPath string) *Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, _ := s.route(method, escapedPath)
	return op
}

// handler serves one operation. It runs with Service.mu held.
type handler func(*Service, *request) response

// doc is a JSON object.
type doc = map[string]any

// request is an HTTP request together with its operation, caller and parameters.
type request struct {
	*http.Request
	op         *Operation // nil if no operation has the path
	params     map[string]string
	path       string // the canonical path
	repo       *repository
	org        *account // the organization in the path, or the owner of repo
	team       *team
	issue      doc // of the issue or pull request in the path
	pull       doc // nil for an issue
	role       *role
	invitation *invitation
	caller     caller
	query      url.Values
	raw        []byte       // the body
	body       doc          // the body if it is a JSON object
	graphQL    *graphQLCall // nil for REST requests
	base       string       // scheme and host of absolute URLs
	quirks     quirk.Set    // the active quirks at the arrival of the request
	now        time.Time
	seq        int64    // the number of this write
	topics     []string // what this write changed
	known      bool     // the object in the path was stored before this write
	action     string   // of the event of this write, if it depends on the state
}

// touch records topics that a successful write changes.
func (r *request) touch(topics ...string) { r.topics = append(r.topics, topics...) }

// response is an HTTP response before it is written.
type response struct {
	status int
	// body is encoded as JSON. If text is not nil, text is written instead. If list is not nil, one page of the total items
	// is encoded.
	body  any
	list  func(from, to int) []any
	total int
	text  []byte
	kind  string // Content-Type of text
	link  string
	// location is the URL of a redirect or of a created resource.
	location string
	allow    string
	modified time.Time
	// volatile responses must not be cached.
	volatile bool
	// private responses are for one user, even without an Authorization header.
	private bool
	// incomplete marks a search that exceeded its time limit.
	incomplete bool
	revision   int64 // the number of the last write that the response shows
	// full is set for a page to which no item can be added. With the quirk LinkMissingIn304 its body carries no revision, so
	// that, as at the API, an item on a later page does not change its ETag.
	full bool
}

// maxBody is the maximum size of a request body in bytes.
const maxBody = 1 << 20

// Listener adds the quirks of connections to a listener with TLS.
func (s *Service) Listener(l net.Listener) net.Listener { return s.quirks.Listener(l) }

// ServeHTTP serves the API, the hosts beside it, and the control endpoints below /_service/.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, controlPrefix) {
		s.controls.ServeHTTP(w, r)
		return
	}
	if !s.serveHost(w, r) {
		s.quirks.Serve(w, r, s.serve)
	}
}

// serve parses, counts and answers one request of the API. If instead is not nil, it responds to a counted request.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, instead http.Handler) {
	arrived, quirks := time.Now(), s.quirks.Current()
	req := &request{Request: r, base: baseURL(r), quirks: quirks, now: arrived.UTC()}
	problem := s.parseRequest(req)
	s.setCommonHeaders(w, req)
	if problem != nil {
		s.write(w, req, *problem)
		return
	}
	ticket := s.meter.arrive(req.caller, arrived)
	defer ticket.leave()
	s.quirks.Delay(r.Context(), quirks.Latency, quirks.DelayBefore)
	ticket.count(s.demand(req))
	if ticket.refusal != accepted {
		ticket.writeHeaders(w.Header(), quirks, 0)
		s.write(w, req, s.limitProblem(req, ticket.refusal))
		return
	}
	if instead != nil {
		ticket.writeHeaders(w.Header(), quirks, 0)
		instead.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	var resp response
	if s.quirks.Due("error_every", quirks.ErrorEvery) {
		resp = fail(cmp.Or(quirks.ErrorStatus, http.StatusBadGateway), "Server Error")
	} else {
		resp = s.answer(req)
	}
	worked := time.Since(began)
	s.quirks.Delay(r.Context(), 0, quirks.DelayAfter)
	if quirks.DelayIsCPU {
		worked = time.Since(arrived)
	}
	ticket.chargeCPU(worked)
	if quirks, ok := w.(interface{ SetRefund(refund func()) }); ok && req.caller.kind != policy.Unauthenticated {
		quirks.SetRefund(ticket.refund)
	}
	body := s.finish(w, req, &resp)
	if w.Header().Get("Etag") != "" && resp.status == http.StatusNotModified && req.caller.kind != policy.Unauthenticated {
		ticket.refund()
	}
	ticket.writeHeaders(w.Header(), quirks, int(s.quirks.UpTo(int64(quirks.HeadersBehind))))
	last := max(0, len(body)-1)
	w.WriteHeader(resp.status)
	_, _ = w.Write(body[:last]) // the client may be gone
	ticket.leave()              // a client that has the last byte may send the next request
	_, _ = w.Write(body[last:])
}

// parseRequest sets the operation, the parameters, the body and the caller of a request. It returns the error response
// of an invalid request, which is not counted.
func (s *Service) parseRequest(r *request) *response {
	if message := targetProblem(r.URL); message != "" {
		return refuse(http.StatusBadRequest, message)
	}
	r.query, _ = url.ParseQuery(r.URL.RawQuery) // the target is valid
	r.path = r.URL.EscapedPath()
	s.mu.Lock()
	r.op, r.params = s.route(r.Method, r.path)
	caller, isKnown := s.authenticate(r.Request)
	s.mu.Unlock()
	if v := s.version(r); !slices.Contains(s.config.Dialect.Versions, v) {
		return refuse(http.StatusBadRequest, "Unsupported API version "+v+": must be one of "+strings.Join(s.config.Dialect.Versions, ", "))
	}
	if !isKnown {
		return refuse(http.StatusUnauthorized, "Bad credentials")
	}
	r.caller = caller
	if r.caller.kind == policy.Unauthenticated && r.op != nil && r.op.needsCaller() {
		return refuse(http.StatusUnauthorized, "Requires authentication")
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(http.MaxBytesReader(nil, r.Body, maxBody)); err != nil {
		return refuse(http.StatusRequestEntityTooLarge, "The body is larger than 1 MiB")
	}
	r.raw = b.Bytes()
	_ = json.Unmarshal(r.raw, &r.body) // other bodies are not JSON objects
	if r.op != nil && r.op.ID == graphQLID {
		r.graphQL = s.readGraphQL(r.raw)
	}
	return nil
}

// targetProblem returns the reason why a target is refused, or "".
func targetProblem(u *url.URL) string {
	for part := range strings.SplitSeq(u.Path, "/") {
		if part == "." || part == ".." {
			return "the path holds a dot segment"
		}
	}
	if !utf8.ValidString(u.Path) || strings.ContainsFunc(u.Path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return "the path holds a forbidden character"
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return "the query is invalid"
	}
	return ""
}

// version returns the API version that a request selects.
func (s *Service) version(r *request) string {
	return cmp.Or(r.Header.Get(s.config.Dialect.VersionHeader), s.config.Dialect.Version)
}

// needsCaller reports whether an operation requires authentication.
func (op *Operation) needsCaller() bool {
	if op.documented != nil {
		return op.documented.Auth == "required"
	}
	return isMine(op.view) || !isRead(op.Method)
}

func refuse(status int, message string, fields ...problemField) *response {
	resp := fail(status, message, fields...)
	return &resp
}

func isRead(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// route returns the operation and the parameters of a request. Paths by number match the operation of the path by name.
func (s *Service) route(method, escapedPath string) (*Operation, map[string]string) {
	path, ok := decodePath(escapedPath)
	if !ok {
		return nil, nil
	}
	op, values := s.router.match(method, path)
	if op == nil {
		path, _ = decodePath(s.world.renamed(escapedPath, false)) // the path is valid
		op, values = s.router.match(method, path)
	}
	return op, values
}

// decodePath returns the decoded segments of a path.
func decodePath(escapedPath string) ([]string, bool) {
	path := strings.Split(strings.TrimPrefix(escapedPath, "/"), "/")
	for i, part := range path {
		var err error
		if path[i], err = url.PathUnescape(part); err != nil {
			return nil, false
		}
	}
	return path, true
}

// answer returns the encoded response to a counted request. It applies writes to the state.
func (s *Service) answer(r *request) response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodOptions {
		return s.options(r)
	}
	if r.op == nil {
		return notFound()
	}
	hasTarget, isVisible := s.resolve(r)
	handle := s.handler(r, hasTarget, isVisible)
	if isRead(r.Method) {
		resp := handle(s, r)
		return s.encode(r, resp, s.changes.revision(s.topicsOf(r)))
	}
	if isVisible {
		s.touchKinds(r) // before and after the change
	}
	r.seq, r.known = s.changes.last+1, s.world.find(r.path) != nil
	rows, before := effectsOf(r), doc{}
	if r.Method == http.MethodDelete && len(rows) > 0 {
		before = s.membersOf(r, rows, s.read(r, r.path))
	}
	resp := handle(s, r)
	if resp.status >= 400 || r.seq == 0 {
		return s.encode(r, resp, 0)
	}
	s.touchKinds(r)
	s.touchTree(r)
	s.applyEffects(r, rows, before, resp.body)
	if r.repo != nil && slices.Contains(r.topics, r.repo.path()) {
		s.touchRepoViews(r)
	}
	s.changes.write(r.topics)
	return s.encode(r, resp, r.seq)
}

// handler returns the handler of a request with an operation. The handlers of the documents precede the others.
func (s *Service) handler(r *request, hasTarget, isVisible bool) handler {
	if documented := r.op.documented; documented != nil {
		if refused := cmp.Or(s.checkQuery(r), s.authorize(r, hasTarget), s.findTarget(r)); refused != nil {
			return answerWith(*refused)
		}
		return documentedHandlers[documented.ID]
	}
	switch {
	case !isVisible:
		return answerWith(notFound())
	case r.op.noApps && r.caller.kind == policy.Installation:
		return answerWith(fail(http.StatusForbidden, "Resource not accessible by integration"))
	case tableHandlers[r.op.ID] != nil:
		return tableHandlers[r.op.ID]
	case viewHandlers[r.op.Method+" "+r.op.view] != nil:
		return viewHandlers[r.op.Method+" "+r.op.view]
	}
	return (*Service).generic
}

// answerWith returns a handler with one response.
func answerWith(resp response) handler { return func(*Service, *request) response { return resp } }

// encode turns the body of a response into text with a revision.
func (s *Service) encode(r *request, resp response, revision int64) response {
	resp.revision = revision
	if resp.list != nil {
		s.page(r, &resp)
	}
	if resp.status == http.StatusNoContent || resp.status == http.StatusResetContent {
		resp.body = nil
	}
	isStatement := resp.status < 400 || resp.status == http.StatusNotFound // about the state
	if isJSON := resp.text == nil && resp.body != nil; isJSON && isStatement && r.graphQL == nil && r.op.ID != rateLimitID {
		s.encodeBody(&resp)
		if !resp.full || r.quirks.LinkMissingIn304.Probability == 0 {
			resp.text = mark(resp.text, revision)
		}
	}
	return resp
}

// encodeBody turns the body of a response into text.
func (s *Service) encodeBody(resp *response) {
	if resp.text != nil || resp.body == nil {
		return
	}
	if p, ok := resp.body.(problemBody); ok && p.Documentation == "" {
		p.Documentation = s.config.Dialect.Documentation
		resp.body = p
	}
	resp.text, resp.kind = encode(resp.body), "application/json; charset=utf-8"
}

// options returns the methods that the path supports.
func (s *Service) options(r *request) response {
	var allow []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if op, _ := s.route(method, r.URL.EscapedPath()); op != nil {
			allow = append(allow, method)
		}
	}
	if allow == nil {
		return notFound()
	}
	return response{status: http.StatusNoContent, allow: strings.Join(append(allow, http.MethodOptions), ", ")}
}

// setCommonHeaders sets the headers of every response.
func (s *Service) setCommonHeaders(w http.ResponseWriter, req *request) {
	h := w.Header()
	if offset := time.Duration(req.quirks.ClockOffset); offset != 0 { // otherwise net/http sets Date
		h.Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
	}
	vendor := s.config.Dialect.Vendor
	name := http.CanonicalHeaderKey("X-" + vendor)
	h.Set(name+"-Request-Id", cryptorand.Text())
	h.Set(name+"-Media-Type", vendor+".v3; format=json")
	h.Set(name+"-Api-Version-Selected", s.version(req))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=60, s-maxage=60")
	h.Set("Vary", "Accept, Accept-Encoding, X-Requested-With")
	isPrivate := req.Header.Get("Authorization") != ""
	if isPrivate {
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
	}
	if isPrivate || s.config.Dialect.Name == "service" {
		h.Set("Vary", "Accept, Authorization, Cookie, "+name+"-Otp, Accept-Encoding, X-Requested-With")
	}
}

// RevisionHeader is the response header with the revision. JSON bodies carry the revision, too.
const RevisionHeader = "X-Github-Revision"

// write sets the remaining headers and writes a response.
func (s *Service) write(w http.ResponseWriter, req *request, resp response) {
	body := s.finish(w, req, &resp)
	w.WriteHeader(resp.status)
	_, _ = w.Write(body) // the client may be gone
}

// finish sets the remaining headers and returns the body. If the validators of the request match, finish turns the
// response into a 304.
func (s *Service) finish(w http.ResponseWriter, req *request, resp *response) []byte {
	s.encodeBody(resp)
	h := w.Header()
	h.Set(RevisionHeader, strconv.FormatInt(resp.revision, 10))
	if req.caller.token == "classic" {
		h.Set("X-Oauth-Scopes", strings.Join(req.caller.scopes, ", "))
		h.Set("X-Accepted-Oauth-Scopes", req.op.requiredScope())
	}
	for name, value := range map[string]string{"Link": resp.link, "Allow": resp.allow, "Location": resp.location, "Content-Type": resp.kind} {
		if value != "" {
			h.Set(name, value)
		}
	}
	if resp.private {
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
	}
	if resp.volatile || resp.status >= 400 || resp.status == http.StatusAccepted {
		h.Set("Cache-Control", "no-cache")
	}
	safe := req.Method == http.MethodGet || req.Method == http.MethodHead
	if safe && resp.status == http.StatusOK {
		s.validate(h, req, resp)
	}
	if len(resp.text) > 0 {
		h.Set("Content-Length", strconv.Itoa(len(resp.text)))
	}
	return resp.text
}

func baseURL(r *http.Request) string {
	return map[bool]string{true: "https://", false: "http://"}[r.TLS != nil] + r.Host
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(encode(v))
}
