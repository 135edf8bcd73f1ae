package proxy

import (
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// Record is what happened to one request. The access line, the headers and the
// page of recent requests are made from it, so they cannot disagree.
type Record struct {
	ID        string        `json:"id"`
	Start     time.Time     `json:"start"`
	Method    string        `json:"method"`
	Route     string        `json:"route"`
	Operation string        `json:"operation"`
	Account   string        `json:"account"`
	Client    string        `json:"client,omitempty"`
	Resource  string        `json:"resource"`
	Status    int           `json:"status"`
	Bytes     int64         `json:"bytes"`
	Elapsed   time.Duration `json:"elapsed_ns"`
	// Cache is the Cache-Status that the client got.
	Cache string `json:"cache"`
	// Background marks what Weir asked for without a client that waits for it.
	Background bool `json:"background,omitempty"`
	// Waited is the time spent for a permit, between polls, and for what others had
	// asked; Attempts is how many requests went upstream.
	Waited   time.Duration `json:"waited_ns"`
	Attempts int           `json:"attempts"`
	// Spent is how many of its account's quota the attempts cost, as far as that is
	// known; Polls how many of them found an answer that is still computed.
	Spent int `json:"spent"`
	Polls int `json:"polls,omitempty"`
	// Outcome is Cache in a word: hit, stale, validated, miss, bypass, collapsed, refused
	// (by Weir), or own, for what Weir knows without asking.
	Outcome string `json:"outcome"`
	// Saved is set for an answer that cost nothing and would have without Weir.
	Saved bool `json:"saved,omitempty"`
	// Error is what went wrong, for the operator.
	Error string `json:"error,omitempty"`
	// Trace is the trace that tells of it, Span the part of that that is this request, in
	// hexadecimal; empty where none is kept.
	Trace string `json:"trace_id,omitempty"`
	Span  string `json:"span_id,omitempty"`
	// Stages are what it went through, in the order in which they began. What came from
	// the cache has none.
	Stages []Stage `json:"stages,omitempty"`
}

// Stage is a part of a request's journey that took time.
type Stage struct {
	// Name is queue (for a permit), flight (for what another had asked), attempt (a
	// request upstream), settle (what it cost is told to the ledger), poll (between two
	// attempts) or retry (before another, where the connection broke).
	Name string `json:"name"`
	// Start is when it began, since the request did.
	Start   time.Duration `json:"start_ns"`
	Elapsed time.Duration `json:"elapsed_ns"`
	// Detail is why, or what came of it: a limit's name, a status.
	Detail string `json:"detail,omitempty"`
	// Failed is set where it came to nothing: no permit, no answer.
	Failed bool `json:"failed,omitempty"`
}

// Admission is how a request for a permit ended: admitted, waited, or the reason for
// which it was refused. It is of a queue only.
func (s Stage) Admission() string {
	switch {
	case s.Failed:
		return s.Detail
	case s.Detail == "":
		return "admitted"
	}
	return "waited"
}

// admission is how the last of them ended; empty where there was none.
func (r *Record) admission() (last string) {
	for _, s := range r.Stages {
		if s.Name == stageQueue {
			last = s.Admission()
		}
	}
	return last
}

// ClientLabel is the client as it is counted: all who are not configured together.
func (r *Record) ClientLabel() string {
	if r.Client == "" {
		return "pass-through"
	}
	return r.Client
}

// went takes over how far another record of the same request has come.
func (r *Record) went(as *Record) {
	r.Attempts, r.Waited, r.Spent, r.Polls, r.Stages = as.Attempts, as.Waited, as.Spent, as.Polls, as.Stages
}

// maxDebug bounds what an answer tells of its own journey, in bytes.
const maxDebug = 1 << 10

// debug tells a client that may know it what was made of its request until its answer began,
// in the form of Cache-Status: parameters, and what it went through in its order. op is nil
// where the request was refused before it was known.
func (r *Record) debug(op *policy.Operation) string {
	parts := []string{"weir"}
	tell := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	tell("operation", r.Operation)
	if op != nil {
		tell("cache", string(op.Cache.Class))
		tell("points", strconv.Itoa(op.Points))
	}
	tell("resource", r.Resource)
	tell("client", r.Client)
	tell("account", r.Account)
	for _, s := range r.Stages {
		value := strings.Replace(s.Elapsed.Round(time.Microsecond).String(), "µ", "u", 1) // a field is ASCII
		if s.Detail != "" {
			value += " (" + s.Detail + ")"
		}
		tell(s.Name, value)
	}
	tell("error", r.Error)
	text := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, strings.Join(parts, "; "))
	return text[:min(len(text), maxDebug)]
}

func (r *Record) attrs() []slog.Attr {
	attrs := []slog.Attr{
		slog.String("request", r.ID),
		slog.String("method", r.Method),
		slog.String("route", r.Route),
		slog.String("operation", r.Operation),
		slog.String("account", r.Account),
		slog.Int("status", r.Status),
		slog.Int64("bytes", r.Bytes),
		slog.Duration("elapsed", r.Elapsed),
		slog.String("cache", r.Cache),
		slog.Int("attempts", r.Attempts),
		slog.Duration("waited", r.Waited),
	}
	if r.Background {
		attrs = append(attrs, slog.Bool("background", true))
	}
	if r.Client != "" {
		attrs = append(attrs, slog.String("client", r.Client))
	}
	if r.Error != "" {
		attrs = append(attrs, slog.String("error", r.Error))
	}
	return attrs
}
