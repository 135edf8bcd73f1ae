package credential

import (
	"context"
	"time"
)

const (
	// freshFor is the time after minting for which the upstream may not know a token yet.
	freshFor = 15 * time.Second
	// commitAfter is the age from which a request that cannot be repeated may test a fresh token.
	commitAfter = 5 * time.Second
	// The pause before another test of a fresh token starts at firstTestPause and doubles up to longestTestPause. The
	// pause before a rejection is confirmed is firstTestPause, too.
	firstTestPause, longestTestPause = 500 * time.Millisecond, 2 * time.Second
	// testTime is the time for which other requests wait for the result of a test. Another test may then begin.
	testTime = 5 * time.Second
)

// standing is what the responses of the upstream have shown about one token or key:
//
//	state      requests            401                            403 or 404 to a safe request
//	unproven   all                 rejected                       proven
//	  fresh    one at a time       repeated                       repeated
//	  refused  one at a time       rejected                       proven
//	proven     all                 doubted, repeated              proven
//	doubted    one at a time       rejected                       proven
//	rejected   after a quarantine, rejected, longer quarantine    proven
//	           one at a time
//
// An unproven token is fresh for freshFor after its minting, and refused afterwards if its tests got refusals. Each other
// response below 500 proves the token. Only a success proves a fresh token, because the upstream may send any other response to
// a token that it does not know yet.
//
// One request at a time is a test. A response to a request that was sent before the current state began changes nothing.
type standing struct {
	state  state
	minted time.Time // zero for a token that was not minted
	since  time.Time // start of the state; zero for unproven
	tested time.Time // start of the test in progress; zero without a test
	next   time.Time // no test begins earlier
	// refusals counts the refused tests of a fresh token, or the rejections in a row.
	refusals int
}

type state int

const (
	unproven state = iota
	proven
	doubted
	rejected
)

// answer classifies a response for a standing.
type answer int

const (
	answerNone    answer = iota // no response, or a response that shows nothing about the token
	answerUnknown               // 401 to an operation outside the catalogue; counts only for a fresh or refused token
	answerRefused               // 401
	answerHidden                // 403 or 404 to a safe request
	answerOther                 // another response below 500
	answerSuccess
)

// verdict is the effect of a response.
type verdict int

const (
	verdictCounts  verdict = iota // the response is for the client
	verdictAccepts                // likewise; the token is proven
	verdictRepeat                 // the response shows nothing about the request, which must be repeated
	verdictRejects                // the token is rejected
)

// isFresh reports whether the upstream may not know the token yet.
func (s *standing) isFresh(now time.Time) bool {
	return s.state == unproven && !s.minted.IsZero() && now.Before(s.minted.Add(freshFor))
}

// isGated reports whether the token is sent with one request at a time.
func (s *standing) isGated(now time.Time) bool {
	return s.state == doubted || s.state == rejected || s.isFresh(now) || s.state == unproven && s.refusals > 0
}

// opens returns the time at which a request may be sent with the token, unless the state changes earlier. The time is zero if a
// request may be sent now.
func (s *standing) opens(now time.Time) (until time.Time) {
	if !s.isGated(now) {
		return until
	}
	if !s.tested.IsZero() {
		until = s.tested.Add(testTime)
	}
	if s.next.After(until) {
		until = s.next
	}
	if !until.After(now) {
		return time.Time{}
	}
	return until
}

// begin records a request with the token.
func (s *standing) begin(now time.Time) {
	if s.isGated(now) {
		s.tested = now
	}
}

// end records that a request ended, and reports whether it was the test in progress.
func (s *standing) end(sent time.Time) bool {
	if s.tested.IsZero() || sent.Before(s.tested) {
		return false
	}
	s.tested = time.Time{}
	return true
}

// observe changes the state for the response to a request.
func (s *standing) observe(a answer, sent, now time.Time) verdict {
	s.end(sent)
	fresh := s.isFresh(sent)
	old := sent.Before(s.since) || s.state != proven && sent.Equal(s.since)
	switch {
	case a == answerNone:
		return verdictCounts
	case fresh && (a == answerRefused || a == answerUnknown || a == answerHidden):
		s.refusals++
		s.next = now.Add(min(longestTestPause, firstTestPause<<min(s.refusals-1, 8)))
		return verdictRepeat
	case fresh && a == answerOther, a == answerUnknown && (s.state != unproven || s.refusals == 0):
		return verdictCounts
	case old && a == answerRefused && s.state != rejected: // a newer request decides
		return verdictRepeat
	case old:
		return verdictCounts
	case a == answerRefused && s.state == proven:
		s.state, s.since, s.next = doubted, now, now.Add(firstTestPause)
		return verdictRepeat
	case a == answerRefused, a == answerUnknown:
		s.reject(now)
		return verdictRejects
	}
	s.accept(now)
	return verdictAccepts
}

// accept makes the token proven.
func (s *standing) accept(now time.Time) {
	if s.state != proven {
		*s = standing{state: proven, minted: s.minted, since: now}
	}
}

// reject starts or extends a quarantine.
func (s *standing) reject(now time.Time) {
	if s.state != rejected {
		s.refusals = 0
	}
	span := longestQuarantine
	if s.refusals < 10 { // a larger shift could overflow
		span = min(span, firstQuarantine<<s.refusals)
	}
	*s = standing{state: rejected, minted: s.minted, since: now, next: now.Add(span), refusals: s.refusals + 1}
}

// pause is the wait for a change of a credential.
type pause struct {
	changed <-chan struct{} // closed at the next change
	until   time.Time       // the latest time of the next attempt; zero if only a change permits it
}

// wait blocks until the end of the pause. The error is that of the context.
func (p *pause) wait(ctx context.Context) error {
	var timeout <-chan time.Time
	if !p.until.IsZero() {
		timer := time.NewTimer(time.Until(p.until))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-p.changed:
	case <-timeout:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// signal wakes the requests that wait for a change. Its owner's lock must be held.
type signal struct{ c chan struct{} }

// wait returns the pause until the next change.
func (s *signal) wait(until time.Time) *pause {
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return &pause{s.c, until}
}

func (s *signal) send() {
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}
