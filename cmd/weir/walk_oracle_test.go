package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
)

// oracle finds violations in a walk. It shares no decision with the gateway: it uses the counts of the service, a
// journal of the requests that reached the service, and the access log.
type oracle struct {
	service    *service.Service
	judge      *testservers.Judge
	operations []*service.Operation
	lag        time.Duration // of the service's replicas

	mu       sync.Mutex
	journal  map[string][]*arrival // by account, in the order of arrival
	shown    map[string]bool       // accounts and paths for which the service gave a response that is no error
	answered map[string]time.Time  // the latest by account, method, path and status
	records  map[string]walkRecord // of the access log, by request ID
	senders  map[string]string     // actors, by request ID
	failures []failedReply         // to find in the records
	expected []expectedBreak
	findings []string       // violations
	outcomes map[string]int // replies by status and cache status, for the log
	// lostLimits counts limit errors that the gateway could not receive, because their client had left.
	lostLimits  int
	limitErrors []string               // for a finding
	refuted     map[string]time.Time   // by actor and path: the latest failed write that shows another state of its object
	broken      map[string][]time.Time // by method and path: the service broke the connection, the stream or the body
	nextOutside time.Time              // the next request of a program that does not use the gateway
	spare       atomic.Int64           // repositories that were renamed
	oldNames    quirk.Names
}

// arrival is a request at the service.
type arrival struct {
	path                   string
	began, ended           time.Time // ended is zero while the request is in progress
	status                 int
	write, graphQL, search bool
	limited                time.Time // until then, because of a limit error or because little remains
	limitError, lost       bool
}

// walkRecord is an access line.
type walkRecord map[string]string

// failedReply is a reply that the record must explain.
type failedReply struct {
	what, id, method string
	status           int
	began, ended     time.Time
	broken           bool // in the middle of the body
}

// expectedBreak is a failure that the service must have caused by breaking a request.
type expectedBreak struct {
	failedReply
	request string // method and path
}

func newOracle(s *service.Service, faults quirk.Set) *oracle {
	o := &oracle{
		service: s, judge: testservers.NewJudge(s.Missing), operations: s.Operations(), lag: time.Duration(faults.ReplicaLag),
		journal: map[string][]*arrival{}, shown: map[string]bool{}, answered: map[string]time.Time{},
		records: map[string]walkRecord{}, senders: map[string]string{}, outcomes: map[string]int{}, broken: map[string][]time.Time{},
		refuted: map[string]time.Time{}, oldNames: maps.Clone(faults.OldNames),
	}
	o.judge.Lag = o.lag
	return o
}

// wrong records a finding.
func (o *oracle) wrong(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.findings = append(o.findings, fmt.Sprintf(format, args...))
}

// want records a finding unless the texts are equal.
func (o *oracle) want(want, got, what string) {
	if got != want {
		o.wrong("%s: got %q, want %q", what, got, want)
	}
}

// readAccessLine reads a line of the log of a gateway.
func (o *oracle) readAccessLine(gateway int, line map[string]any) {
	if line["msg"] != "request" {
		return
	}
	record := walkRecord{"gateway": fmt.Sprint(gateway)}
	for name, value := range line {
		record[name] = fmt.Sprint(value)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.records[record["request"]] = record
}

// accountOf returns the account of a request at the service, as walkActor.account does.
func accountOf(r *http.Request) string {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	user, password, ok := r.BasicAuth()
	switch {
	case ok && strings.HasPrefix(password, "tok-"):
		return password
	case ok:
		return user + ":" + password
	case token == "":
		return "anonymous"
	case strings.HasPrefix(token, "ghs_"):
		return "tok-app"
	case strings.HasPrefix(token, "made-up"):
		return "made-up"
	}
	return token
}

// observe writes the journal.
func (o *oracle) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/access_tokens") && strings.Contains(r.Header.Get("Authorization"), "eyJ") {
			r.Header.Set("Authorization", "Bearer tok-jwt") // the service knows no keys of apps
		}
		account, path := accountOf(r), r.URL.EscapedPath()
		a := &arrival{path: path, began: time.Now(), write: r.Method != http.MethodGet && r.Method != http.MethodHead, graphQL: path == "/graphql", search: strings.HasPrefix(path, "/search/")}
		o.mu.Lock()
		o.journal[account] = append(o.journal[account], a)
		o.mu.Unlock()
		seen := &seenWriter{ResponseWriter: w}
		seen.onHeader = func(status int) {
			o.mu.Lock()
			defer o.mu.Unlock()
			a.status = status
			number := func(field string) int64 { n, _ := strconv.ParseInt(w.Header().Get(field), 10, 64); return n }
			if limit := number("X-Ratelimit-Limit"); limit > 0 && number("X-Ratelimit-Remaining") <= limit/2 {
				a.limited = time.Unix(number("X-Ratelimit-Reset"), 0)
			}
			o.answered[answerKey(account, r.Method, path, status)] = time.Now()
			if status < 400 {
				o.shown[account+path] = true
			}
		}
		defer func() {
			problem := recover()
			switch {
			case path == "/future/tools" && r.Header.Get("X-Mcp-Readonly") == "":
				o.wrong("the field X-Mcp-Readonly of a client did not reach the service")
			case r.Trailer.Get("Cookie") != "":
				o.wrong("the trailer Cookie of a client reached the service")
			}
			o.mu.Lock()
			a.ended = time.Now()
			a.lost = problem != nil || r.Context().Err() != nil
			if until := time.Now().Add(o.longestPause(account)); (limitText.MatchString(seen.body.String()) || a.graphQL && a.status == http.StatusForbidden) && a.limited.Before(until) {
				a.limited, a.limitError = until, true
				o.limitErrors = append(o.limitErrors, fmt.Sprintf("%s to %s for %s %s: %d %.120q", a.ended.Format("04:05.000"), account, r.Method, r.URL.RequestURI(), a.status, seen.body.String()))
				if a.lost {
					o.lostLimits++
				}
			}
			if a.lost {
				o.broken[r.Method+path] = append(o.broken[r.Method+path], a.ended)
			}
			o.mu.Unlock()
			if problem != nil {
				panic(problem)
			}
		}()
		next.ServeHTTP(seen, r)
	})
}

// sentTo returns the statuses of the responses to an account's requests for a path.
func (o *oracle) sentTo(account, path string) (statuses []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.journal[account] {
		if a.path == path {
			statuses = append(statuses, a.status)
		}
	}
	return statuses
}

// longestPause returns the longest pause that a limit error justifies: it doubles with each error shortly after another. The lock
// must be held.
func (o *oracle) longestPause(account string) time.Duration {
	pause := 2 * time.Minute
	for _, a := range o.journal[account] {
		if a.limitError && time.Since(a.ended) < 10*time.Minute {
			pause = min(2*pause, time.Hour)
		}
	}
	return pause
}

var limitText = regexp.MustCompile(`rate limit|RATE_LIMIT|too quickly|too many requests`)

// seenWriter shows the status and the first bytes of a response.
type seenWriter struct {
	http.ResponseWriter
	onHeader func(status int)
	body     strings.Builder
	begun    bool
}

func (w *seenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *seenWriter) WriteHeader(status int) {
	if !w.begun {
		w.begun = true
		w.onHeader(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *seenWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if w.body.Len() < 512 {
		w.body.Write(p[:min(len(p), 512)])
	}
	return w.ResponseWriter.Write(p)
}

var (
	public      = regexp.MustCompile(`^/(rate_limit|(gitignore|codes_of_conduct|licenses)(/.*)?|emojis|meta|versions|zen|octocat)$`)
	privateName = regexp.MustCompile(`"(full_name|nameWithOwner)":\s*"acme/secret"`)
	detailOf    = regexp.MustCompile(`detail="?([\w-]+)`)
	suspect     = regexp.MustCompile(`; detail=(was-)?suspect-[\w-]+`) // no reason for a failure
	forwardedOf = regexp.MustCompile(`fwd-status=(\d+)`)
)

// check checks the reply to a request of a client.
func (o *oracle) check(a *walkActor, m message, r reply, began time.Time, left bool) {
	path, _, _ := strings.Cut(m.target, "?")
	cache := suspect.ReplaceAllString(r.header.Get("Cache-Status"), "")
	what := fmt.Sprintf("%s %s as %s at %s: %d %v, %s, %.150q", m.method, m.target, a.name, time.Now().Format("04:05.000"), r.status, r.err, cache, r.body)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.senders[r.header.Get("Weir-Request-Id")] = a.name
	o.outcomes[fmt.Sprintf("%d %t %s", r.status, r.err != nil, regexp.MustCompile(`ttl=-?\d+`).ReplaceAllString(cache, ""))]++
	shows := r.status >= 200 && r.status < 400
	private := strings.HasPrefix(path, "/repos/acme/secret")
	switch {
	case shows && !a.member && (private || privateName.Match(r.body)):
		o.findings = append(o.findings, "leak of a private repository: "+what)
	case shows && a.madeUp && !limitText.Match(r.body) && !public.MatchString(path) && r.header.Get("Location") == "":
		o.findings = append(o.findings, "response to a made-up token: "+what)
	case shows && private && !o.shown[a.account()+path]:
		o.findings = append(o.findings, "response that the service never gave to this caller: "+what)
	}
	age, _ := strconv.Atoi(r.header.Get("Age"))
	failed, ok := o.refuted[a.name+path]
	switch {
	case left || r.err != nil:
	case m.method == http.MethodGet && ok && strings.HasPrefix(cache, "weir; hit") && time.Duration(age-1)*time.Second > time.Since(failed) && !began.Before(failed):
		o.findings = append(o.findings, fmt.Sprintf("response from before a failed write %v ago: %s", time.Since(failed), what))
	case m.method != http.MethodGet && slices.Contains([]int{404, 405, 409, 410, 412}, r.status) && forwardedOf.MatchString(cache):
		o.refuted[a.name+path] = time.Now()
	}
	if left || r.err == nil && shows {
		return
	}
	f := failedReply{what, r.header.Get("Weir-Request-Id"), m.method, r.status, began, time.Now(), r.err != nil}
	o.failures = append(o.failures, f)
	if a.login != "" && r.status == http.StatusUnauthorized {
		o.findings = append(o.findings, "the credential is valid: "+what)
	}
	if r.status >= 400 && !detailOf.MatchString(cache) && o.serviceGave(a, m, path, r.status, cache, began) {
		return
	}
	if problem := o.justify(a, m, path, r, f); problem != "" {
		o.findings = append(o.findings, problem+": "+what)
	}
}

func answerKey(account, method, path string, status int) string {
	return fmt.Sprint(account, method, path, status)
}

// serviceGave reports whether the service returned the same error to the account of a request. If the request was forwarded
// and not coalesced, the error must be at most as old as the request.
func (o *oracle) serviceGave(a *walkActor, m message, path string, status int, cache string, began time.Time) bool {
	at, ok := o.answered[answerKey(a.account(), m.method, path, status)]
	if strings.Contains(cache, "fwd=") && !strings.Contains(cache, "collapsed") {
		return ok && !at.Before(began)
	}
	return ok
}

// justify returns the reason why a failure is wrong, or "".
func (o *oracle) justify(a *walkActor, m message, path string, r reply, f failedReply) string {
	detail := ""
	if found := detailOf.FindStringSubmatch(suspect.ReplaceAllString(r.header.Get("Cache-Status"), "")); found != nil {
		detail = found[1]
	}
	since := func(d time.Duration, count func(*arrival) float64) (sum float64) {
		for _, arrived := range slices.Backward(o.journal[a.account()]) {
			if time.Since(arrived.began) > d {
				break
			}
			sum += count(arrived)
		}
		return sum
	}
	l := walkLimits()
	// The budgets that every client of an account shares.
	budgets := map[string]func() bool{
		"primary": func() bool {
			// The documents do not tell when a window of searches begins, so the gateway obeys each minute.
			searches := since(time.Minute+2*time.Second, func(x *arrival) float64 { return b2f(x.search) })
			return since(time.Hour, func(x *arrival) float64 { return b2f(!x.limited.Before(f.began)) }) > 0 ||
				strings.HasPrefix(path, "/search/") && searches >= float64(l.Search.Code)/2
		},
		"points": func() bool {
			// After two limit errors, another program seems to use a part of the points, so the gateway uses less.
			limitErrors := since(2*time.Hour, func(x *arrival) float64 { return b2f(x.limitError) })
			allowance := max(0.1, min(0.5, math.Pow(0.4, limitErrors-1)))
			return since(time.Minute+time.Second, func(x *arrival) float64 { return 1 + 4*b2f(x.write) }) >= float64(l.Points.REST)*allowance
		},
		"content": func() bool {
			return since(5*time.Minute, func(x *arrival) float64 { return b2f(x.write) + float64(l.Content[0].Max)*b2f(x.limitError) }) >= float64(l.Content[0].Max)/2
		},
		"concurrency": func() bool {
			inProgress := func(x *arrival) float64 { return b2f(x.ended.IsZero() || x.ended.After(f.began.Add(-10*time.Second))) }
			return since(time.Minute, inProgress) >= float64(l.Concurrent)/2 ||
				since(5*time.Minute, func(x *arrival) float64 { return b2f(x.limitError) }) > 0 // slow start
		},
		"cpu": func() bool {
			return since(2*time.Minute, func(x *arrival) float64 {
				if x.ended.IsZero() {
					return time.Since(x.began).Seconds()
				}
				return x.ended.Sub(x.began).Seconds()
			}) >= l.CPU.GraphQL.Seconds()/2
		},
	}
	ok := false
	switch detail {
	case "primary", "points", "content", "concurrency", "cpu":
		ok = budgets[detail]()
	case "cooldown", "headroom":
		ok = budgets["primary"]()
	case "client", "queue": // the clients of an account divide each of its budgets, and wait behind each other for any of them
		for _, exhausted := range budgets {
			ok = ok || (detail == "queue" || a.sharesAccount()) && exhausted()
		}
	case "refused-token":
		ok = a.madeUp
	case "unverified-token":
		ok = true // unexplained checks it
	case "authentication":
		ok = a.token == ""
	case "credential":
		ok = since(time.Minute, func(x *arrival) float64 { return b2f(x.status == 401 || x.status == 403 || x.status == 404) }) > 0
		ok = ok || slices.ContainsFunc(o.journal["tok-jwt"], func(x *arrival) bool {
			return time.Since(x.began) < time.Minute && (x.status != http.StatusCreated || x.ended.IsZero() || x.lost)
		})
	case "upstream", "timeout", "":
		o.expected = append(o.expected, expectedBreak{f, m.method + path}) // the service may notice a broken connection later
		ok = true
	default:
		return "failure with an unknown detail"
	}
	switch {
	case !ok:
		return "failure that neither the service nor a limit justifies"
	case (r.status == http.StatusTooManyRequests || r.status == http.StatusServiceUnavailable) && r.header.Get("Retry-After") == "" && detail != "":
		return "refusal without Retry-After"
	}
	return ""
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// conclude returns all findings after the walk.
func (w *walk) conclude() []string {
	o := w.oracle
	got := o.service.Violations()
	o.mu.Lock()
	defer o.mu.Unlock()
	wrong := func(format string, args ...any) { o.findings = append(o.findings, fmt.Sprintf(format, args...)) }
	// Requests after a limit error that was lost get another one. Until then, requests in parallel are on their way.
	if got.Violations > 0 || got.SentWhileLimited > 4*o.lostLimits || got.Banned {
		wrong("limits: %d violations, %d requests sent while limited (%d limit errors lost), banned: %t, by limit %v\n%s",
			got.Violations, got.SentWhileLimited, o.lostLimits, got.Banned, got.ByLimit, strings.Join(o.limitErrors, "\n"))
	}
	for _, stale := range o.judge.Stale() {
		wrong("stale: %s", stale)
	}
	for _, e := range o.expected {
		if !slices.ContainsFunc(o.broken[e.request], func(at time.Time) bool { return !at.Before(e.began) }) {
			wrong("failure that neither the service nor a limit justifies: %s", e.what)
		}
	}
	for _, f := range o.failures {
		if reason := o.unexplained(f); reason != nil {
			wrong("%v: %s", reason, f.what)
		}
	}
	judged, _ := o.judge.Judged()
	w.Logf("%d requests, %d judged reads, service %v", w.sent.Load(), judged, got.Answered)
	for _, outcome := range slices.Sorted(maps.Keys(o.outcomes)) {
		w.Logf("%6d %s", o.outcomes[outcome], outcome)
	}
	return o.findings
}

// unexplained returns why the access log does not explain a failure.
func (o *oracle) unexplained(f failedReply) error {
	if f.id == "" { // an aborted connection
		for _, r := range o.records {
			at, _ := time.Parse(time.RFC3339Nano, r["time"])
			if r["method"] == f.method && r["error"] != "" && !at.Before(f.began) && !at.After(f.ended.Add(time.Second)) {
				return nil
			}
		}
		return errors.New("no record explains an aborted response")
	}
	r, ok := o.records[f.id]
	switch {
	case !ok:
		return errors.New("failure without a record")
	case r["error"] != "" && f.broken:
	case r["status"] != fmt.Sprint(f.status):
		return fmt.Errorf("the record has another status, %s", r["status"])
	case f.status >= 500 && r["error"] == "" && !forwardedOf.MatchString(r["cache"]):
		return fmt.Errorf("the record does not explain the failure: %v", r)
	case strings.Contains(r["cache"], "detail=unverified-token"):
		return o.unverified(r)
	}
	return nil
}

// unverified returns why the gateway of a refusal did not have to refuse the token: it got a success for the token after
// the last 401, or it has sent fewer than 20 requests without a success in the minute before.
func (o *oracle) unverified(refused walkRecord) error {
	timeOf := func(r walkRecord) time.Time { t, _ := time.Parse(time.RFC3339Nano, r["time"]); return t }
	at, unsuccessful := timeOf(refused), 0
	var accepted, denied time.Time
	for id, r := range o.records {
		ended := timeOf(r)
		elapsed, _ := strconv.ParseFloat(r["elapsed"], 64) // in nanoseconds
		if r["gateway"] != refused["gateway"] || ended.Add(-time.Duration(elapsed)).After(at) || !strings.Contains(r["cache"], "fwd=") || strings.Contains(r["cache"], "collapsed") {
			continue
		}
		status := ""
		if found := forwardedOf.FindStringSubmatch(r["cache"]); found != nil {
			status = found[1]
		}
		success := strings.HasPrefix(status, "2") || status == "304"
		if !success && at.Sub(ended) < time.Minute {
			unsuccessful++
		}
		switch {
		case o.senders[id] != o.senders[refused["request"]] || ended.After(at):
		case success && ended.After(accepted):
			accepted = ended
		case status == "401" && ended.After(denied):
			denied = ended
		}
	}
	switch {
	case accepted.After(denied):
		return fmt.Errorf("the service accepted the token %v before", at.Sub(accepted))
	case unsuccessful < 20:
		return fmt.Errorf("only %d requests without a success", unsuccessful)
	}
	return nil
}
