package proxy

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weirgate/weir/proxy/inbound"
)

// exchange is the client's side of a request in progress. Only the goroutine that serves the request changes the exchange.
// The exchange is never copied.
type exchange struct {
	w            *recorder
	in           *http.Request
	body         *inbound.Body    // body of in; nil without a body
	address      netip.Addr       // of the client
	leave        func(netip.Addr) // ends the request in progress of RateLimiter; nil if it is not counted
	buffered     *buffer          // prefix of the body that was read in advance; nil before that read
	wholeBody    bool             // buffered contains the complete body
	waitingSince time.Time        // start of the wait for the deadline
	debug        bool             // the client may send the field Weir-Debug
	authorized   bool             // the client may send the request; only these clients get the trace of the request
	prefix       string           // prefix of the client's path: Config.Prefix, "/api/v3", or both
	prefer       preference
	// question is nil before the operation is known, and has no credential before ask ends. adopt replaces it by the question of
	// the attempt whose result the client gets.
	question  *question
	shed      error                                 // the refusal of an overloaded gateway
	broken    bool                                  // the upstream's body ended early
	lateLimit *lateLimit                            // of the adopted attempt
	interim   func(int, textproto.MIMEHeader) error // forwards a 1xx response
	span      trace.Span                            // records nothing if the request is not sampled
	record    *Record                               // observers keep the record, so it is no part of the exchange
}

// open returns a new exchange.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request) *exchange {
	ex := &exchange{w: newRecorder(w, r, g.Timeout, g.Drain), waitingSince: time.Now(), span: noop.Span{}}
	ex.in, ex.body = inbound.LimitBody(w, r, g.Timeout, g.BodyTimeout)
	ex.record = &Record{ID: rand.Text(), Start: ex.waitingSince, Method: methodLabel(r.Method), Route: otherRoute, Upstream: g.Upstream.Hostname()}
	ex.prefer = parsePrefer(r.Header[preferField])
	return ex
}

// adopt makes the result of an attempt the result of the exchange.
func (ex *exchange) adopt(a *attempt) {
	ex.question, ex.lateLimit = a.question, a.lateLimit
	r, from := ex.record, &a.result
	r.Account, r.Resource, r.Cache, r.Error = from.account, from.resource, from.cache, from.err
	r.Limited, r.LimitAnswer, r.OutsideRange = from.limited, from.limitAnswer, from.outsideRange
}

// detach returns the request's context without its cancellation, for work that must survive a disconnect.
func (ex *exchange) detach() context.Context { return context.WithoutCancel(ex.in.Context()) }

// deadline returns the end of the client's wait. The client waits for byDefault without a Prefer field.
func (ex *exchange) deadline(byDefault time.Duration) time.Time {
	if ex.prefer.given {
		byDefault = ex.prefer.wait
	}
	return ex.waitingSince.Add(byDefault)
}

// methodLabel bounds the methods in logs and metrics.
func methodLabel(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return method
	}
	return "_OTHER"
}

// preference is the content of a Prefer field (RFC 7240): the maximum wait of the client.
type preference struct {
	wait    time.Duration
	given   bool
	applied string // value of Preference-Applied
}

// maxPreferWait bounds the wait that a client can request.
const maxPreferWait = 5 * time.Minute

func parsePrefer(values []string) preference {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			name, argument, _ := strings.Cut(strings.TrimSpace(part), "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				return preference{given: true, applied: "respond-async"}
			case "wait":
				if n, err := strconv.ParseUint(strings.Trim(argument, `" `), 10, 31); err == nil {
					wait := min(time.Duration(n)*time.Second, maxPreferWait)
					return preference{wait: wait, given: true, applied: "wait=" + strconv.FormatUint(n, 10)}
				}
			}
		}
	}
	return preference{}
}

// preferField is the request field with preferences (RFC 7240).
const preferField = "Prefer"

// otherPreferences returns the preferences that are not for this gateway.
func otherPreferences(values []string) (others []string) {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			name, _, _ := strings.Cut(part, "=")
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != "wait" && name != "respond-async" {
				others = append(others, strings.TrimSpace(part))
			}
		}
	}
	return others
}

// otherRoute is the label of requests without an operation.
const otherRoute = "_OTHER"
