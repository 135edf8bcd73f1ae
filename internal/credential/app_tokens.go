package credential

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// renewBefore is how long before its end a token is replaced by a new one. A request
	// may wait for a permit for as long after it has been given its token.
	renewBefore = 5 * time.Minute
	// issuing bounds one request for a token. A lease lives longer, so that nobody else
	// asks meanwhile; who waits for a token waits until a holder that has died has lost
	// it.
	issuing    = 10 * time.Second
	leaseLives = 15 * time.Second
	getting    = leaseLives + issuing
	// look is how often it is looked for what another replica gets.
	look = 100 * time.Millisecond
	// After a failure nothing is asked for firstPause, and twice as long after each that
	// follows, longestPause at most. Neither is a new token asked for again sooner than
	// firstPause, however soon the last one ends.
	firstPause, longestPause = 5 * time.Second, 5 * time.Minute
	// longestHeeded is how long a Retry-After is heeded: as long as the longest window of
	// a limit.
	longestHeeded = time.Hour
)

// TokenStore is where replicas share tokens, sealed, and the right to ask for one. An error
// means that nobody can tell. Calls have deadlines of their own.
type TokenStore interface {
	// Load returns the token of a name; a zero one where there is none.
	Load(ctx context.Context, name string) (AppToken, error)
	// Lease lets its owner alone ask for a token, for some time, and reports whether it
	// has the lease.
	Lease(ctx context.Context, name, owner string, lives time.Duration) (bool, error)
	// Return ends a lease that the owner has. Where there is a token to share it stores
	// that first.
	Return(ctx context.Context, name, owner string, t AppToken) error
}

// AppTokens has the tokens of installations: each asked for once by all replicas together,
// and renewed before its end. It outlives a [Book] and is safe for concurrent use.
// [AppTokens.Close] ends what it does by itself.
type AppTokens struct {
	store TokenStore // nil where nothing is shared
	log   *slog.Logger

	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu            sync.Mutex
	appTokenState map[string]*appTokenState // by identity and key; bounded by the configurations there were
}

// appTokenState is what is known of one installation's token.
type appTokenState struct {
	token AppToken
	since time.Time // when it came
	// bad is a token that the upstream has refused.
	bad Secret
	// next is when a token may be asked for again, pause how long that was put off, and
	// err why there is none.
	next  time.Time
	pause time.Duration
	err   error
	// arrival is closed when what is being asked for has come; nil while nothing is.
	arrival chan struct{}
}

// NewAppTokens returns a mint; store may be nil.
func NewAppTokens(store TokenStore, log *slog.Logger) *AppTokens {
	ctx, stop := context.WithCancel(context.Background())
	return &AppTokens{store: store, log: log, ctx: ctx, stop: stop, appTokenState: map[string]*appTokenState{}}
}

// Close ends what is being asked for, and waits for it. Nothing must be asked after it.
func (m *AppTokens) Close() {
	m.stop()
	m.running.Wait()
}

// Source is where a [Book] has the token of an installation from, whose
// credential has a name.
func (m *AppTokens) Source(name string, a *App, i *TokenEndpoint) *Source {
	return &Source{
		Identity: a.identity(),
		Token:    func(ctx context.Context) (Secret, error) { return m.token(ctx, name, a, i) },
		Reject:   func(sent time.Time) { m.reject(a, sent) },
	}
}

// token returns a token of the installation. While there is a good one nobody waits for
// a new one. An error is [UnusableError], or the context's.
func (m *AppTokens) token(ctx context.Context, name string, a *App, i *TokenEndpoint) (Secret, error) {
	for {
		now := time.Now()
		m.mu.Lock()
		t := m.of(a)
		lives := t.token.Expires.Sub(now)
		if lives < renewBefore && t.arrival == nil && !now.Before(t.next) {
			t.arrival = make(chan struct{})
			m.running.Go(func() { m.get(name, a, i, t) })
		}
		value, arrival, failed := t.token.Value, t.arrival, &UnusableError{Name: name, Until: t.next, Cause: t.err}
		m.mu.Unlock()
		switch {
		case lives > 0:
			return value, nil
		case arrival == nil:
			return "", failed
		}
		select {
		case <-arrival:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// of returns what is known of an app's token; the caller holds mu. What has failed by one
// key may not by another, with which the app comes after a reload.
func (m *AppTokens) of(a *App) *appTokenState {
	key := sha256.Sum256([]byte(a.Key.Reveal()))
	id := a.identity() + string(key[:])
	if m.appTokenState[id] == nil {
		m.appTokenState[id] = &appTokenState{}
	}
	return m.appTokenState[id]
}

// errEnds is why there is no token, where one came that ended at once.
var errEnds = errors.New("the last installation token has ended already")

// get gets a new token, for all who wait.
func (m *AppTokens) get(name string, a *App, i *TokenEndpoint, t *appTokenState) {
	ctx, cancel := context.WithTimeout(m.ctx, getting)
	defer cancel()
	m.mu.Lock()
	bad := t.bad
	m.mu.Unlock()
	token, err := m.fetch(ctx, a, i, bad)
	m.mu.Lock()
	defer m.mu.Unlock()
	close(t.arrival)
	t.arrival = nil
	now := time.Now()
	if err == nil {
		t.token, t.since, t.err, t.pause, t.next = token, now, errEnds, 0, now.Add(firstPause)
		return
	}
	t.pause = min(max(firstPause, 2*t.pause), longestPause)
	var refused *refusedIssue
	if errors.As(err, &refused) {
		t.pause = max(t.pause, min(refused.retryAfter, longestHeeded))
	}
	t.err, t.next = err, now.Add(t.pause)
	m.log.Warn("there is no new installation token", "credential", name, "installation", a.Installation, "again", t.next, "error", err)
}

// fetch takes the token that another replica has got, or asks for one while no other
// does. Where replicas cannot tell each other, each asks for itself.
func (m *AppTokens) fetch(ctx context.Context, a *App, i *TokenEndpoint, bad Secret) (AppToken, error) {
	if m.store == nil {
		return issueInTime(ctx, a, i)
	}
	name, owner := a.identity(), rand.Text()
	for {
		mine, err := m.store.Lease(ctx, name, owner, leaseLives)
		if err != nil {
			return issueInTime(ctx, a, i)
		}
		// Looked for after the lease: who had it before has stored it by now.
		token, err := m.store.Load(ctx, name)
		good := err == nil && time.Until(token.Expires) > renewBefore && !token.Value.Equal(bad)
		switch {
		case good && !mine:
			return token, nil
		case good:
			_ = m.store.Return(ctx, name, owner, AppToken{}) // else it ends by itself
			return token, nil
		case mine:
			return m.issueForAll(ctx, name, owner, a, i)
		}
		pause := time.NewTimer(look)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return AppToken{}, errors.New("another replica asks for the installation token, and has none yet")
		}
	}
}

// issueForAll asks for a token under a lease, and shares it.
func (m *AppTokens) issueForAll(ctx context.Context, name, owner string, a *App, i *TokenEndpoint) (AppToken, error) {
	token, err := issueInTime(ctx, a, i)
	if shared := m.store.Return(context.WithoutCancel(ctx), name, owner, token); shared != nil {
		m.log.Warn("an installation token is not shared: other replicas ask for their own", "installation", a.Installation, "error", shared)
	}
	return token, err
}

func issueInTime(ctx context.Context, a *App, i *TokenEndpoint) (AppToken, error) {
	ctx, cancel := context.WithTimeout(ctx, issuing)
	defer cancel()
	return i.issue(ctx, a)
}

// reject notes that the upstream has refused a token of the app's that was sent at some
// time. If that is the one it has now, it is not used again.
func (m *AppTokens) reject(a *App, sent time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.of(a); t.token.Value != "" && !sent.Before(t.since) {
		t.bad, t.token = t.token.Value, AppToken{}
	}
}
