// Package judge scores limiters. It has an upstream that counts each limit of the API, and the tasks that programs send to
// this upstream.
//
// A limiter is a library in a program, or a proxy. Both get the same work: [Run] starts commands, [Load] sends requests
// through a proxy. The requests are counted by internal/service, which shares no counting code with the gateway.
//
// Read first: [Limits] (the limits of the upstream), then [Tasks] (the work) and [Upstream.Score].
package judge

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

const (
	// Duration is the length of a run. It ends in the third window of each limit. Windows of the upstream end up to a
	// second early, so a fourth window begins after 57 seconds at the earliest.
	Duration = 55 * time.Second
	// Token is the token of all programs.
	Token = "tok-owner"

	window   = 20 * time.Second
	windows  = 3                     // windows that begin in a run
	cooldown = 20 * time.Second      // after a secondary limit error
	latency  = 50 * time.Millisecond // of each response
)

// Limits returns the limits of the upstream. The limits per minute are those of the documents, for a third of a minute,
// because limiters have fixed pauses that suit these rates. The primary limit is 300 in 20 seconds instead of 5,000 in an
// hour, so that a run includes its resets.
func Limits() policy.Limits {
	l := policy.DefaultLimits()
	l.Primary.User, l.Primary.Window = 300, window
	l.Search.Authenticated, l.Search.Window = 10, window
	l.Points.REST, l.Points.Window = 300, window
	l.CPU.Total, l.CPU.GraphQL, l.CPU.Window = 30*time.Second, 20*time.Second, window
	l.Content = []policy.Window{{Max: 25, Window: window}}
	return l
}

// Upstream is an [http.Handler] that simulates the API and counts the requests of one run. It is safe for concurrent use.
type Upstream struct {
	service *service.Service

	mu          sync.Mutex // guards the fields below
	limitErrors int
	created     int
	requests    int
}

// NewUpstream returns an upstream for one run. Call [Upstream.Close] to release its goroutines.
func NewUpstream() (*Upstream, error) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		return nil, err
	}
	s, err := service.New(service.Config{
		Limits: Limits(), Seed: 1, Dialect: dialect, Cooldown: cooldown, Quirks: quirk.Set{Latency: quirk.Duration(latency)},
	})
	return &Upstream{service: s}, err
}

// Close stops the upstream's background jobs and waits for them.
func (u *Upstream) Close() { u.service.Close() }

// ServeHTTP answers one request and counts its response.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recorder := &statusRecorder{ResponseWriter: w}
	u.service.ServeHTTP(recorder, r)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests++
	switch recorder.status {
	case http.StatusForbidden, http.StatusTooManyRequests:
		u.limitErrors++
	case http.StatusCreated:
		u.created++
	}
}

// seen returns the number of requests that the upstream has answered.
func (u *Upstream) seen() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.requests
}

// statusRecorder is a response writer that records the status of the response.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Score is the result of a run.
type Score struct {
	Programs int `json:"programs"`
	// Seconds is the time until all programs ended, at most [Duration].
	Seconds int `json:"seconds"`
	// Violations counts the requests that exceeded a limit.
	Violations int `json:"violations"`
	// ByLimit counts the violations of each limit.
	ByLimit map[string]int `json:"by_limit"`
	// SentWhileLimited counts the requests that were sent during a cool-down, or to an exhausted window after its first
	// refusal.
	SentWhileLimited int `json:"sent_while_limited"`
	// Banned reports whether the upstream banned the token, because of 100 requests sent while limited.
	Banned bool `json:"banned"`
	// LimitErrors counts the limit errors that the programs, or the libraries in them, received.
	LimitErrors int `json:"limit_errors"`

	Core    Use `json:"core"`
	Search  Use `json:"search"`
	Content Use `json:"content"`
}

// Use is the number of successful responses that counted against a limit, and how many the limit allows in a run.
type Use struct {
	Answered int `json:"answered"`
	Allowed  int `json:"allowed"`
}

// Share returns the used share of the limit in percent.
func (u Use) Share() int { return 100 * u.Answered / u.Allowed }

// Score returns the score of a run. The duration took is the time until all programs ended.
func (u *Upstream) Score(programs int, took time.Duration) Score {
	seen, limits := u.service.Violations(), Limits()
	u.mu.Lock()
	defer u.mu.Unlock()
	score := Score{
		Programs: programs, Seconds: int(took.Round(time.Second).Seconds()), Violations: seen.Violations, ByLimit: map[string]int{}, SentWhileLimited: seen.SentWhileLimited,
		Banned: seen.Banned, LimitErrors: u.limitErrors,
		Core:    Use{seen.Answered[policy.Core], windows * limits.Primary.User},
		Search:  Use{seen.Answered[policy.Search], windows * limits.Search.Authenticated},
		Content: Use{u.created, windows * limits.Content[0].Max},
	}
	for name, n := range seen.ByLimit {
		name, _, _ = strings.Cut(strings.TrimPrefix(name, "primary:"), ":") // the service adds the window of content limits
		score.ByLimit[name] += n
	}
	return score
}
