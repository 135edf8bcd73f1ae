package proxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weirgate/weir/cache"
)

// CacheStatus says how the gateway handled a request: the member of Cache-Status (RFC 9211) that the gateway adds to a response.
// The zero value is that of a refusal, or of a request without a response.
type CacheStatus struct {
	// Hit is set if no request was forwarded for the client.
	Hit bool
	// Forward is the reason for a forwarded request, otherwise empty. ForwardStatus is the status of its last response, or 0.
	Forward       ForwardReason
	ForwardStatus int
	// Stored is set if the forwarded response is stored, and Collapsed if the request shared another request upstream.
	Stored, Collapsed bool
	// TTL is the rest of the lifetime in seconds, negative for a stale response. It counts only if HasTTL is set.
	TTL    int
	HasTTL bool
	// Detail is the reason for a refusal or for a stale response, or the source of a hit. [DetailSuspect] and
	// [DetailWasSuspect] are prefixes of the cause of a suspect response.
	Detail string
	// Own is set for an answer without cache and upstream, such as the rate limit status. It is not part of the field.
	Own bool
}

// ForwardReason is the fwd parameter of Cache-Status (RFC 9211 section 2.2).
type ForwardReason string

// Reasons for forwarded requests.
const (
	ForwardMethod  ForwardReason = "method"
	ForwardBypass  ForwardReason = "bypass"
	ForwardRequest ForwardReason = "request"
	ForwardMiss    ForwardReason = "uri-miss"
	ForwardStale   ForwardReason = "stale"
)

// Outcome is a CacheStatus in one word.
type Outcome string

// Outcomes of requests.
const (
	OutcomeHit       Outcome = "hit"
	OutcomeStale     Outcome = "stale"
	OutcomeValidated Outcome = "validated"
	OutcomeMiss      Outcome = "miss"
	OutcomeBypass    Outcome = "bypass"
	OutcomeCollapsed Outcome = "collapsed"
	OutcomeRefused   Outcome = "refused"
	OutcomeOwn       Outcome = "own"
)

// Outcome returns the status in one word.
func (s *CacheStatus) Outcome() Outcome {
	switch {
	case s.Own:
		return OutcomeOwn
	case s.Collapsed:
		return OutcomeCollapsed
	case s.Stale():
		return OutcomeStale
	case s.Hit:
		return OutcomeHit
	case s.ForwardStatus == http.StatusNotModified:
		return OutcomeValidated
	case s.Forward == ForwardBypass, s.Forward == ForwardMethod, s.Forward == ForwardRequest && !s.Stored:
		return OutcomeBypass
	case s.Forward != "":
		return OutcomeMiss
	}
	return OutcomeRefused
}

// Stale reports whether the client got a stale response. The TTL of a stored response is that of the stored one.
func (s *CacheStatus) Stale() bool { return s.TTL < 0 && !s.Stored }

// setTTL sets the rest of the lifetime of an entry.
func (s *CacheStatus) setTTL(e *cache.Entry, now time.Time) {
	s.TTL, s.HasTTL = -int(e.Staleness(now)/time.Second), true
	if e.Suspect != "" {
		s.TTL = min(s.TTL, 0)
	}
}

const (
	// DetailSuspect says that the response may be older than a change of the cause, so its next use revalidates it.
	DetailSuspect = "suspect-"
	// DetailWasSuspect says that the request was forwarded because the stored response was suspect.
	DetailWasSuspect = "was-suspect-"
)

// suspect sets the detail of a response that is suspect for a cause. An empty cause has no effect.
func (s *CacheStatus) suspect(cause cache.Cause) {
	if cause != "" {
		s.Detail = DetailSuspect + string(cause)
	}
}

// hitOf returns the status of a stored response that needs no request.
func hitOf(e *cache.Entry, now time.Time) CacheStatus {
	s := CacheStatus{Hit: true}
	s.setTTL(e, now)
	s.suspect(e.Suspect)
	return s
}

// String returns the member of the field.
func (s CacheStatus) String() string {
	var space [96]byte
	b := append(space[:0], "weir"...)
	if s.Hit {
		b = append(b, "; hit"...)
	}
	if s.Forward != "" {
		b = append(append(b, "; fwd="...), s.Forward...)
	}
	if s.ForwardStatus != 0 {
		b = strconv.AppendInt(append(b, "; fwd-status="...), int64(s.ForwardStatus), 10)
	}
	if s.Stored {
		b = append(b, "; stored"...)
	}
	if s.Collapsed {
		b = append(b, "; collapsed"...)
	}
	if s.HasTTL {
		b = strconv.AppendInt(append(b, "; ttl="...), int64(s.TTL), 10)
	}
	if s.Detail != "" {
		b = append(append(b, "; detail="...), s.Detail...)
	}
	return string(b)
}
