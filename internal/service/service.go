package service

import (
	"bytes"
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Config configures a [Service].
type Config struct {
	Limits policy.Limits
	// Seed determines the initial state.
	Seed uint64
	// Dialect determines the names of headers and media types.
	Dialect *policy.Dialect
	// StatisticsDelay is the duration of a statistics job. The default is 1.5 s.
	StatisticsDelay time.Duration
	// Cooldown is the duration of the cool-down after a secondary limit error, and the value of Retry-After. The default is
	// one minute.
	Cooldown time.Duration
	// Faults are active from the start.
	Faults Faults

	// Dial connects to the receivers of webhook deliveries. The default uses the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Service is an [http.Handler] that implements the API and is safe for concurrent use.
type Service struct {
	config   Config
	handlers map[string]handler
	meter    *meter
	faults   faultState
	jobs     sync.WaitGroup
	stop     context.CancelFunc
	running  context.Context

	mu        sync.Mutex // guards the next five fields
	world     *world
	stats     map[statisticsKey]*statisticsJob
	hooks     []*hook
	lastHook  int // ID of the newest webhook
	lastEvent int // number of the newest event

	eventMu    sync.Mutex // serializes events; lock it before mu
	deliveries *deliveryQueue
}

// New returns a service with new state. Call [Service.Close] to release its goroutines.
func New(c Config) *Service {
	if c.StatisticsDelay == 0 {
		c.StatisticsDelay = 1500 * time.Millisecond
	}
	s := &Service{
		config: c, meter: newMeter(c.Limits, cmp.Or(c.Cooldown, time.Minute)),
		world: seed(c.Seed, time.Now()), stats: map[statisticsKey]*statisticsJob{},
	}
	s.faults.random = rand.New(rand.NewPCG(c.Seed, 2))
	s.setFaults(c.Faults)
	s.handlers = handlers()
	app := s.world.tokens["tok-app"]
	app.coreLimit = c.Limits.OfInstallation(s.world.installationSize("acme"))
	s.world.tokens["tok-app"] = app
	s.running, s.stop = context.WithCancel(context.Background())

	s.deliveries = newDeliveryQueue(c.Dial)
	s.jobs.Go(func() { s.deliveries.run(s.running) })
	return s
}

// Close stops the background jobs and waits for them. Later requests start no jobs.
func (s *Service) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.jobs.Wait()
}

// Violations is the result of [Service.Violations] and the response to GET
// /_service/violations.
type Violations struct {
	// Violations counts requests that were refused because they exceeded a limit.
	Violations int `json:"violations"`
	// SentWhileLimited counts requests that arrived during the waiting time of an earlier
	// refusal.
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
}

// Highest is the highest sum of a limit, and the limit.
type Highest struct {
	Sum   int `json:"sum"`
	Limit int `json:"limit"`
}

// Violations returns the violations and sums since the start or the last reset.
func (s *Service) Violations() Violations { return s.meter.report() }

// handler serves one operation. It runs with Service.mu held.
type handler func(*Service, *request) response

// request is an HTTP request together with its operation, caller and parameters.
type request struct {
	*http.Request
	match policy.Match
	// operation is the matched operation. For GraphQL it also depends on the body.
	operation *policy.Operation
	caller    caller
	target    pathTarget // the repository and organization that the path names
	query     url.Values
	body      []byte
	graphQL   *graphQLCall // nil for REST requests
	base      string       // scheme and host of absolute URLs
	faults    Faults       // the active faults at the arrival of the request
}

// response is an HTTP response before it is written.
type response struct {
	status int
	// body is encoded as JSON. If text is not nil, text is written instead.
	body any
	text []byte
	kind string // Content-Type of text
	link string
	// location is the URL of a redirect or of a created resource.
	location string
	allow    string
	modified time.Time
	// volatile responses must not be cached.
	volatile bool
	// private responses are for one user, even without an Authorization header.
	private bool
}

// maxBody is the maximum size of a request body in bytes.
const maxBody = 1 << 20

// ServeHTTP parses, counts and answers one request. Requests to the control endpoints below /_service/ are not counted.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, controlPrefix) {
		s.serveControl(w, r)
		return
	}
	arrived, faults := time.Now(), s.faults.current()
	req := &request{Request: r, base: baseURL(r), faults: faults}
	s.setCommonHeaders(w, req)
	if problem := s.parseRequest(req); problem != nil {
		s.write(w, req, *problem)
		return
	}
	ticket := s.meter.arrive(req.caller, arrived)
	defer ticket.leave()
	s.faults.delay(r, faults.Latency, faults.DelayBefore)
	ticket.count(req.operation, r.URL.Path, req.primaryCost())
	if ticket.refusal != accepted {
		ticket.writeHeaders(w.Header(), faults, 0)
		s.write(w, req, s.limitProblem(req, ticket.refusal))
		return
	}
	began := time.Now()
	var resp response
	if s.faults.isDue(&s.faults.errors, faults.ErrorEvery) {
		resp = s.problem(cmp.Or(faults.ErrorStatus, http.StatusBadGateway), "Server Error")
	} else {
		resp = s.answer(req)
	}
	worked := time.Since(began)
	s.faults.delay(r, 0, faults.DelayAfter)
	if faults.DelayIsCPU {
		worked = time.Since(arrived)
	}
	ticket.chargeCPU(req.operation, worked)
	body := s.finish(w, req, &resp)
	if w.Header().Get("Etag") != "" && resp.status == http.StatusNotModified && req.caller.kind != policy.Unauthenticated {
		ticket.refund()
	}
	ticket.writeHeaders(w.Header(), faults, int(s.faults.randomUpTo(int64(faults.HeadersBehind))))
	if len(body) > 1 && s.faults.isDue(&s.faults.bodies, faults.TruncateEvery) {
		sendTruncated(w, resp.status, body)
	}
	last := max(0, len(body)-1)
	sendPart(w, resp.status, body[:last], len(body))
	ticket.leave() // a client that has the last byte may send the next request
	_, _ = w.Write(body[last:])
}

// send writes a response with its Content-Length.
func send(w http.ResponseWriter, status int, body []byte) { sendPart(w, status, body, len(body)) }

// sendPart writes the beginning of a response with a body of n bytes.
func sendPart(w http.ResponseWriter, status int, beginning []byte, n int) {
	if n > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(n))
	}
	w.WriteHeader(status)
	_, _ = w.Write(beginning)
}

// sendTruncated writes the Content-Length of the body and half of the body. Then it closes
// the connection.
func sendTruncated(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// parseRequest sets the operation, the parameters and the caller of a request. It returns
// the error response of an invalid request, which is not counted.
func (s *Service) parseRequest(req *request) *response {
	problem := func(status int, message string) *response {
		p := s.problem(status, message)
		return &p
	}
	match, err := policy.Embedded().Classify(req.Method, req.URL.EscapedPath(), req.URL.RawQuery)
	var target *policy.TargetError
	switch {
	case errors.As(err, &target) && target.Status == http.StatusMethodNotAllowed && req.Method == http.MethodOptions:
		match.Operation = &policy.Operation{ID: policy.UnknownID, Method: req.Method, Path: req.URL.Path, Resource: policy.Core, Points: 1, Auth: "optional"}
	case errors.As(err, &target):
		return problem(cmp.Or(target.Status, http.StatusBadRequest), err.Error())
	}
	req.match, req.operation = match, match.Operation
	req.query, _ = url.ParseQuery(match.Query) // canonical, so it cannot fail
	if v := req.Header.Get(s.config.Dialect.VersionHeader); v != "" && v != s.config.Dialect.Version {
		return problem(http.StatusBadRequest, "Unsupported API version "+v+": must be "+s.config.Dialect.Version)
	}
	var ok bool
	if req.caller, ok = s.authenticate(req.Request); !ok {
		return problem(http.StatusUnauthorized, "Bad credentials")
	}
	if match.Operation.Auth == "required" && req.caller.kind == policy.Unauthenticated {
		return problem(http.StatusUnauthorized, "Requires authentication")
	}
	if match.Operation.Resource == policy.GraphQL {
		var tooLarge *response
		if req.body, tooLarge = s.read(req); tooLarge != nil {
			return tooLarge
		}
		req.graphQL = s.readGraphQL(req.body)
		req.operation = req.graphQL.charged(match.Operation)
	}
	return nil
}

// answer runs the handler of the operation and returns its response.
func (s *Service) answer(req *request) response {
	if req.Method == http.MethodOptions {
		return s.options(req)
	}
	op, handle := req.match.Operation, s.handler(req)
	if !op.Known() && handle == nil {
		return s.notFound()
	}
	if f := req.match.Preflight(req.caller.kind); f != nil {
		return s.preflightProblem(f)
	}
	if handle == nil {
		return s.problem(http.StatusNotImplemented, "Not Implemented: "+op.ID)
	}
	if !op.Safe() && req.body == nil {
		var problem *response
		if req.body, problem = s.read(req); problem != nil {
			return *problem
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if problem := s.authorize(req); problem != nil {
		return *problem
	}
	resp := handle(s, req)
	if resp.text == nil && resp.body != nil {
		resp.text, resp.kind = encode(resp.body), "application/json; charset=utf-8"
	}
	return resp
}

// options returns the methods that the path supports.
func (s *Service) options(req *request) response {
	var allow []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if m, err := policy.Embedded().Classify(method, req.URL.EscapedPath(), ""); err == nil && m.Operation.Known() {
			allow = append(allow, method)
		}
	}
	if allow == nil {
		return s.notFound()
	}
	return response{status: http.StatusNoContent, allow: strings.Join(append(allow, http.MethodOptions), ", ")}
}

func (s *Service) read(req *request) ([]byte, *response) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(http.MaxBytesReader(nil, req.Body, maxBody)); err != nil {
		p := s.problem(http.StatusRequestEntityTooLarge, "The body is larger than 1 MiB")
		return nil, &p
	}
	return b.Bytes(), nil
}

// setCommonHeaders sets the headers of every response.
func (s *Service) setCommonHeaders(w http.ResponseWriter, req *request) {
	h := w.Header()
	if offset := time.Duration(req.faults.ClockOffset); offset != 0 { // otherwise net/http sets Date
		h.Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
	}
	vendor := s.config.Dialect.Vendor
	name := http.CanonicalHeaderKey("X-" + vendor)
	h.Set(name+"-Request-Id", cryptorand.Text())
	h.Set(name+"-Media-Type", vendor+".v3; format=json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept, Authorization, Cookie, "+name+"-Otp")
	h.Set("Cache-Control", "public, max-age=60, s-maxage=60")
	if req.Header.Get("Authorization") != "" {
		h.Set("Cache-Control", "private, max-age=60, s-maxage=60")
	}
}

// write sets the remaining headers and writes a response.
func (s *Service) write(w http.ResponseWriter, req *request, resp response) {
	body := s.finish(w, req, &resp)
	send(w, resp.status, body)
}

// finish sets the remaining headers and returns the body. If the validators of the request match, finish turns the
// response into a 304.
func (s *Service) finish(w http.ResponseWriter, req *request, resp *response) []byte {
	if resp.text == nil && resp.body != nil {
		resp.text, resp.kind = encode(resp.body), "application/json; charset=utf-8"
	}
	h := w.Header()
	if req.caller.token == "classic" {
		h.Set("X-Oauth-Scopes", strings.Join(req.caller.scopes, ", "))
		h.Set("X-Accepted-Oauth-Scopes", requiredScope(req.match.Operation))
	}
	if resp.link != "" {
		h.Set("Link", resp.link)
	}
	if resp.allow != "" {
		h.Set("Allow", resp.allow)
	}
	if resp.location != "" {
		h.Set("Location", resp.location)
	}
	if resp.kind != "" {
		h.Set("Content-Type", resp.kind)
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
	return resp.text
}

func baseURL(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(encode(v))
}
