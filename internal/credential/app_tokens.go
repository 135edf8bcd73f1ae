package credential

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// renewBefore is the remaining lifetime at which a token is renewed.
	renewBefore = 5 * time.Minute
	// issueTimeout bounds one request for a token. The lease lasts longer, so that no other replica sends a request at
	// the same time. A replica waits for a token until after the lease of a dead replica has expired.
	issueTimeout  = 10 * time.Second
	leaseLifetime = 15 * time.Second
	fetchTimeout  = leaseLifetime + issueTimeout
	// sharePollInterval is the interval at which a replica looks in the store for another replica's token.
	sharePollInterval = 100 * time.Millisecond
	// The pause after a failed request starts at firstPause and doubles up to longestPause. firstPause is also the
	// minimum time between two tokens, even if tokens expire sooner.
	firstPause, longestPause = 5 * time.Second, 5 * time.Minute
	// deniedAfter is the age from which a token is replaced after the upstream has denied a permission. So denials cost at most
	// one token of an installation in this time.
	deniedAfter = 5 * time.Minute
)

// TokenStore shares installation tokens among replicas. A replica requests a token only under a lease from the store.
// An error means that the state is unknown. The implementation sets the deadlines of its calls.
type TokenStore interface {
	// Load returns the token of a name, or a zero token.
	Load(ctx context.Context, name string) (AppToken, error)
	// Lease acquires the lease of a name for an owner and reports whether it succeeded.
	Lease(ctx context.Context, name, owner string, lifetime time.Duration) (bool, error)
	// Return stores the token unless it is zero, then releases the owner's lease.
	Return(ctx context.Context, name, owner string, t AppToken) error
}

// AppTokens caches the tokens of app installations and renews them before they expire. The cache survives a reload of
// the configuration and is safe for concurrent use. The cache must be closed.
type AppTokens struct {
	transport http.RoundTripper
	store     TokenStore // nil if replicas do not share tokens
	log       *slog.Logger

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	sources map[string]*Source // grows with reloads only
}

// Source provides the tokens of one installation. See [Held.Source].
//
// A new token is fresh: the upstream may not know it yet. One request at a time tests a fresh token, until a success proves
// it. The other requests use the previous token until it expires, or wait.
type Source struct {
	tokens *AppTokens
	name   string // of the held credential
	owner  string // of leases
	app    *App

	// The fields below are guarded by AppTokens.mu.

	newest *appToken // nil without a token
	// previous is the token before newest, until newest is proven or previous expires; otherwise nil.
	previous *appToken
	rejected AppToken // the newest token that the upstream rejected
	// next is the earliest time of the next request for a token. pause is the current pause between requests without a
	// proven token. err is the reason for the pause, or nil after a success.
	next  time.Time
	pause time.Duration
	err   error
	// renewing is set while a request for a token is in progress. outdated is set if the permissions of the installation may have
	// changed since the newest token was minted.
	renewing, outdated bool
	changed            signal
}

// appToken is a token with its standing.
type appToken struct {
	AppToken
	standing
	loaded bool // another replica minted the token
}

// NewAppTokens returns an empty cache. store may be nil.
func NewAppTokens(transport http.RoundTripper, store TokenStore, log *slog.Logger) *AppTokens {
	ctx, stop := context.WithCancel(context.Background())
	return &AppTokens{transport: transport, store: store, log: log, ctx: ctx, stop: stop, sources: map[string]*Source{}}
}

// Close cancels the requests in progress and waits for them. No source may be used after Close.
func (t *AppTokens) Close() {
	t.stop()
	t.running.Wait()
}

// Source returns the source for a held credential, with its cached token. A new private key creates a new source, so
// that a corrected key does not wait for the pause after failures.
func (t *AppTokens) Source(name string, app *App) *Source {
	key := sha256.Sum256([]byte(app.Key.Reveal()))
	id := string(key[:]) + app.identity() + name
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources[id] == nil {
		t.sources[id] = &Source{tokens: t, name: name, owner: rand.Text(), app: app}
	}
	return t.sources[id]
}

// Retry ends the pauses after failed requests for tokens, and reports whether there was one. The name is that of a held
// credential, or the account of an installation.
func (t *AppTokens) Retry(name string) (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, s := range t.sources {
		if s.err != nil && now.Before(s.next) && (name == s.name || name == AccountOfInstallation(s.app.Installation)) {
			s.next, s.pause, ended = now, 0, true
			s.changed.send()
		}
	}
	return ended
}

// Renew replaces the tokens of an installation whose permissions have changed. The old token is used until the new one is
// proven.
func (t *AppTokens) Renew(installation int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.sources {
		if s.app.Installation == installation && (s.newest != nil || s.renewing) {
			s.outdated = true
			s.startRenewal(time.Now())
		}
	}
}

// denied records that the upstream denied a permission to a token. The newest token is replaced unless it is young.
func (s *Source) denied(token *appToken, now time.Time) {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	if token == s.newest && now.Sub(token.Minted) >= deniedAfter {
		s.outdated = true
		s.startRenewal(now)
	}
}

// renewed waits for the end of a renewal, and reports whether a newer token replaces the given one.
func (s *Source) renewed(ctx context.Context, token *appToken, by time.Time) bool {
	for {
		s.tokens.mu.Lock()
		newer, renewing, wait := s.newest != nil && s.newest.Minted.After(token.Minted), s.renewing, s.changed.wait(by)
		s.tokens.mu.Unlock()
		if newer || !renewing || !time.Now().Before(by) || wait.wait(ctx) != nil {
			return newer
		}
	}
}

// startRenewal starts a request for a token if it is necessary and permitted. AppTokens.mu must be held.
func (s *Source) startRenewal(now time.Time) {
	if s.renewing || now.Before(s.next) || s.newest != nil && !s.outdated && s.newest.Expires.Sub(now) >= renewBefore {
		return
	}
	unwanted := []Secret{s.rejected.Value}
	if s.outdated && s.newest != nil {
		unwanted = append(unwanted, s.newest.Value)
	}
	outdated := s.outdated
	s.renewing, s.outdated = true, false
	s.tokens.running.Go(func() { s.renew(unwanted, outdated) })
}

// get returns a valid token, without regard to its standing. The error is an [policy.UnusableError] or the context's error.
func (s *Source) get(ctx context.Context) (Secret, error) {
	for {
		s.tokens.mu.Lock()
		token, wait, err := s.token(time.Now())
		s.tokens.mu.Unlock()
		switch {
		case err != nil:
			return "", err
		case token != nil:
			return token.Value, nil
		}
		if err := wait.wait(ctx); err != nil {
			return "", err
		}
	}
}

// token returns the newest valid token, and starts a renewal if necessary. Without a token it returns a pause or an
// [policy.UnusableError]. AppTokens.mu must be held.
func (s *Source) token(now time.Time) (*appToken, *pause, error) {
	if s.previous != nil && !now.Before(s.previous.Expires) {
		s.previous = nil
	}
	if s.newest != nil && !now.Before(s.newest.Expires) {
		s.newest, s.previous = s.previous, nil
	}
	s.startRenewal(now)
	switch {
	case s.newest != nil:
		return s.newest, nil, nil
	case s.renewing:
		return nil, s.changed.wait(time.Time{}), nil
	case s.err == nil:
		return nil, s.changed.wait(s.next), nil
	}
	return nil, nil, &policy.UnusableError{Name: s.name, Until: s.next, Cause: s.err}
}

// try returns the token for a request. A renewal runs in the background. try returns a pause if the request must wait for a
// token, or for the test of a token. If send is set, the request is sent now. The error is an [policy.UnusableError].
func (s *Source) try(u policy.CredentialUse, send bool, now time.Time) (*appToken, *pause, error) {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	newest, wait, err := s.token(now)
	if newest == nil {
		return nil, wait, err
	}
	// A write that gets 403 or 404 is not repeated, so it tests a token only if no other token is left.
	committed := newest.minted.Add(commitAfter)
	tests := !newest.isGated(now) || u.Safe || (s.previous == nil || u.Denied) && (u.Repeatable || !now.Before(committed))
	until := newest.opens(now)
	if until.IsZero() && !tests {
		until = committed
	}
	token := newest
	if !until.IsZero() && s.previous != nil && !u.Denied {
		token, until = s.previous, s.previous.opens(now)
	}
	if !until.IsZero() {
		return nil, s.changed.wait(until), nil
	}
	if send {
		token.begin(now)
	}
	return token, nil, nil
}

// isFresh reports whether the upstream may not know a token yet.
func (s *Source) isFresh(token *appToken, now time.Time) bool {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	return token.isFresh(now)
}

// observe records the response to a request with a token of the source.
func (s *Source) observe(token *appToken, a answer, sent, now time.Time) verdict {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	defer s.changed.send()
	if token != s.newest && token != s.previous {
		if a == answerRefused { // the token was replaced
			return verdictRepeat
		}
		return verdictCounts
	}
	// A rejected token that the upstream knew is replaced at once. Another token is replaced after a pause, because the upstream
	// may reject each new token. The upstream may have known an unproven token that is older than a rejected token. The same
	// holds for a token of another replica that had no refusal here. It also holds for the first such token in a row if it had
	// no refusal, or if its rejection comes long after its minting.
	mayBeKnown := token.state == unproven && (token.Minted.Before(s.rejected.Minted) || token.loaded && token.refusals == 0 ||
		s.pause == 0 && (token.refusals == 0 || now.After(token.minted.Add(2*freshFor))))
	known := token.state != unproven || mayBeKnown
	refusals := token.refusals
	v := token.observe(a, sent, now)
	switch v {
	case verdictAccepts:
		if refusals > 0 {
			s.tokens.log.Info("new installation token accepted after refusals",
				"credential", s.name, "refusals", refusals, "age", now.Sub(token.minted))
		}
		if token == s.newest {
			s.previous, s.pause = nil, 0
		}
	case verdictRejects:
		s.tokens.log.Warn("installation token rejected with 401", "credential", s.name, "installation", s.app.Installation)
		if !token.Minted.Before(s.rejected.Minted) { // the store may contain the newest
			s.rejected = token.AppToken
		}
		if token == s.newest {
			s.newest = s.previous
			if !known {
				s.delay(errRejected, now)
			} else if mayBeKnown {
				s.pause = max(s.pause, firstPause)
			}
		}
		s.previous = nil
		if known || s.newest != nil { // another token is used
			v = verdictRepeat
		}
	}
	return v
}

// errRejected is the reason for a missing token if the upstream rejected the last token before any success.
var errRejected = errors.New("the upstream rejects its new installation token (401)")

// delay starts the pause before the next request for a token.
func (s *Source) delay(reason error, now time.Time) {
	s.pause = min(max(firstPause, 2*s.pause), longestPause)
	if refused, ok := errors.AsType[*issueError](reason); ok {
		s.pause = max(s.pause, refused.pause)
	}
	s.err, s.next = reason, now.Add(s.pause)
}

// renew fetches a token with another value than the unwanted ones, and records the result. outdated is the reason for the
// renewal.
func (s *Source) renew(unwanted []Secret, outdated bool) {
	ctx, cancel := context.WithTimeout(s.tokens.ctx, fetchTimeout)
	defer cancel()
	began := time.Now()
	token, err := s.fetch(ctx, unwanted)
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	defer s.changed.send()
	s.renewing = false
	now := time.Now()
	if err == nil {
		if token.Minted.After(now) { // on the clock of another replica
			token.Minted = now
		}
		s.previous, s.newest = s.newest, &appToken{token, standing{minted: token.Minted}, token.Minted.Before(began)}
		s.err, s.next = nil, now.Add(firstPause)
		return
	}
	s.outdated = s.outdated || outdated
	s.delay(err, now)
	s.tokens.log.Warn("installation token not renewed",
		"credential", s.name, "installation", s.app.Installation, "retry", s.next, "error", err)
}

// fetch returns another replica's token, or requests a token under the lease. Without a store, or if the store fails,
// fetch requests a token without a lease.
func (s *Source) fetch(ctx context.Context, unwanted []Secret) (AppToken, error) {
	store := s.tokens.store
	if store == nil {
		return s.issue(ctx)
	}
	name := s.app.identity()
	for {
		leased, err := store.Lease(ctx, name, s.owner, leaseLifetime)
		if err != nil {
			return s.issue(ctx)
		}
		// Load after the lease, because the previous owner of the lease has stored a token by now.
		token, err := store.Load(ctx, name)
		good := err == nil && time.Until(token.Expires) > renewBefore && !slices.ContainsFunc(unwanted, token.Value.Equal)
		if good {
			if leased {
				_ = store.Return(ctx, name, s.owner, AppToken{}) // on failure the lease expires
			}
			return token, nil
		}
		if leased {
			token, err := s.issue(ctx)
			if refused, ok := errors.AsType[*issueError](err); ok && refused.limit != "" {
				// The lease lasts as long as the limit, so that no other replica sends a request.
				if _, err := store.Lease(ctx, name, s.owner, refused.pause); err == nil {
					return token, refused
				}
			}
			if err := store.Return(context.WithoutCancel(ctx), name, s.owner, token); err != nil {
				s.tokens.log.Warn("installation token not shared", "installation", s.app.Installation, "error", err)
			}
			return token, err
		}
		select {
		case <-time.After(sharePollInterval):
		case <-ctx.Done():
			return AppToken{}, errors.New("another replica has not received an installation token in time")
		}
	}
}

func (s *Source) issue(ctx context.Context) (AppToken, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	return s.app.issue(ctx, s.tokens.transport)
}
