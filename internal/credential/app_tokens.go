package credential

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	// renewBefore is the remaining lifetime at which a token is renewed. After a request has its token, it may wait
	// this long for a permit.
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
	// maxRetryAfter caps the upstream's Retry-After at the longest window of a limit.
	maxRetryAfter = time.Hour
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
type Source struct {
	tokens *AppTokens
	name   string // of the held credential
	app    *App

	// The fields below are guarded by AppTokens.mu.

	token    AppToken
	received time.Time
	rejected Secret // the last token that the upstream rejected
	// next is the earliest time of the next request for a token. pause is the current pause between failed requests.
	// err is the reason for the missing token.
	next  time.Time
	pause time.Duration
	err   error
	// done is closed when the request in progress ends. done is nil if no request is in progress.
	done chan struct{}
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
		t.sources[id] = &Source{tokens: t, name: name, app: app}
	}
	return t.sources[id]
}

// get returns a valid token. get waits only without a valid token, because a renewal runs in the background. The error
// is an [UnusableError] or the context's error.
func (s *Source) get(ctx context.Context) (Secret, error) {
	for {
		now := time.Now()
		s.tokens.mu.Lock()
		remaining := s.token.Expires.Sub(now)
		if remaining < renewBefore && s.done == nil && !now.Before(s.next) {
			s.done = make(chan struct{})
			rejected := s.rejected
			s.tokens.running.Go(func() { s.renew(rejected) })
		}
		value, done := s.token.Value, s.done
		unusable := &UnusableError{Name: s.name, Until: s.next, Cause: s.err}
		s.tokens.mu.Unlock()
		switch {
		case remaining > 0:
			return value, nil
		case done == nil:
			return "", unusable
		}
		select {
		case <-done:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// errExpired is the reason for a missing token if the last token expired during the pause.
var errExpired = errors.New("the last installation token has expired")

// renew fetches a token and records the result.
func (s *Source) renew(rejected Secret) {
	ctx, cancel := context.WithTimeout(s.tokens.ctx, fetchTimeout)
	defer cancel()
	token, err := s.fetch(ctx, rejected)
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	close(s.done)
	s.done = nil
	now := time.Now()
	if err == nil {
		s.token, s.received, s.err, s.pause, s.next = token, now, errExpired, 0, now.Add(firstPause)
		return
	}
	s.pause = min(max(firstPause, 2*s.pause), longestPause)
	if refused, ok := errors.AsType[*issueError](err); ok {
		s.pause = max(s.pause, min(refused.retryAfter, maxRetryAfter))
	}
	s.err, s.next = err, now.Add(s.pause)
	s.tokens.log.Warn("installation token not renewed",
		"credential", s.name, "installation", s.app.Installation, "retry", s.next, "error", err)
}

// fetch returns another replica's token, or requests a token under the lease. Without a store, or if the store fails,
// fetch requests a token without a lease.
func (s *Source) fetch(ctx context.Context, rejected Secret) (AppToken, error) {
	store := s.tokens.store
	if store == nil {
		return s.issue(ctx)
	}
	name, owner := s.app.identity(), rand.Text()
	for {
		leased, err := store.Lease(ctx, name, owner, leaseLifetime)
		if err != nil {
			return s.issue(ctx)
		}
		// Load after the lease, because the previous owner of the lease has stored a token by now.
		token, err := store.Load(ctx, name)
		good := err == nil && time.Until(token.Expires) > renewBefore && !token.Value.Equal(rejected)
		if good {
			if leased {
				_ = store.Return(ctx, name, owner, AppToken{}) // on failure the lease expires
			}
			return token, nil
		}
		if leased {
			token, err := s.issue(ctx)
			if err := store.Return(context.WithoutCancel(ctx), name, owner, token); err != nil {
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

// reject discards the token that the upstream rejected. sent is the time of the rejected request. If the token was
// received after that time, the request had an older token, and reject does nothing.
func (s *Source) reject(sent time.Time) {
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	if s.token.Value != "" && !sent.Before(s.received) {
		s.rejected, s.token = s.token.Value, AppToken{}
	}
}
