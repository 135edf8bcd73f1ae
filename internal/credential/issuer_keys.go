package credential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// How an issuer is asked.
const (
	// refreshAfter is how long keys are used without looking whether they are still
	// published. A key that was taken back counts so long.
	refreshAfter = 10 * time.Minute
	// usableFor is how long they are used while the issuer does not answer.
	usableFor = time.Hour
	// fetchPause is the pause between two fetches, whatever tokens ask for.
	fetchPause = 10 * time.Second
	// fetchTimeout is for each of the two requests of a fetch.
	fetchTimeout = 5 * time.Second
	// maxIssuerBody bounds the bytes of an answer, maxIssuerKeys the keys in it.
	maxIssuerBody = 256 << 10
	maxIssuerKeys = 64
)

// IssuerKeys are the published keys of issuers, each issuer's apart. They are fetched
// when a token needs them, outlive a reload, and are safe for concurrent use.
type IssuerKeys struct {
	client   *http.Client
	ctx      context.Context
	stop     context.CancelFunc
	fetching sync.WaitGroup

	mu    sync.Mutex
	rings map[string]*keyRing // by the issuer's URL; guarded by mu
}

// keyRing is the keys of one issuer. It is guarded by IssuerKeys.mu.
type keyRing struct {
	keys  []jose.JSONWebKey
	got   time.Time // when these were published; zero for never
	tried time.Time // when the last fetch ended
	err   error     // of the last fetch
	// done is closed when the fetch that goes on has ended; nil when none does.
	done chan struct{}
}

// NewIssuerKeys returns keys that are fetched over a transport; close them.
func NewIssuerKeys(transport http.RoundTripper) *IssuerKeys {
	ctx, stop := context.WithCancel(context.Background())
	client := &http.Client{
		Transport: transport,
		// A redirect would have the keys come from somewhere that was not checked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &IssuerKeys{client: client, ctx: ctx, stop: stop, rings: map[string]*keyRing{}}
}

// Close ends what is being fetched, and waits for it. No token is accepted any more
// whose keys are not there.
func (k *IssuerKeys) Close() {
	k.mu.Lock()
	k.stop() // under mu: afterwards no fetch begins
	k.mu.Unlock()
	k.fetching.Wait()
	k.client.CloseIdleConnections()
}

// Keep forgets all issuers but these.
func (k *IssuerKeys) Keep(urls []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for url := range k.rings {
		if !slices.Contains(urls, url) {
			delete(k.rings, url)
		}
	}
}

// of returns the keys of an issuer that fit a token's header, at least one.
// Those that are there are used at once, even while newer ones are fetched; a
// token that needs others waits for one fetch.
func (k *IssuerKeys) of(ctx context.Context, url string, header jose.Header) ([]jose.JSONWebKey, error) {
	for {
		fitting, done, err := k.look(url, header, time.Now())
		if len(fitting) > 0 || done == nil {
			return fitting, err
		}
		select {
		case <-done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// look returns the keys that fit, or the fetch that may bring them, or why
// there are none.
func (k *IssuerKeys) look(url string, header jose.Header, now time.Time) ([]jose.JSONWebKey, <-chan struct{}, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.rings[url]
	if r == nil {
		r = &keyRing{err: errors.New("they were never asked for")}
		k.rings[url] = r
	}
	known := !r.got.IsZero() && now.Sub(r.got) < usableFor
	var fitting []jose.JSONWebKey
	if known {
		fitting = slices.DeleteFunc(slices.Clone(r.keys), func(key jose.JSONWebKey) bool { return !keyMatches(key, header) })
	}
	wanted := len(fitting) == 0 || now.Sub(r.got) >= refreshAfter
	if wanted && r.done == nil && (r.tried.IsZero() || now.Sub(r.tried) >= fetchPause) && k.ctx.Err() == nil {
		done := make(chan struct{})
		r.done = done
		k.fetching.Go(func() { k.refresh(url, r, done) })
	}
	switch {
	case len(fitting) > 0:
		return fitting, nil, nil
	case r.done != nil:
		return nil, r.done, nil
	case known:
		return nil, nil, fmt.Errorf("%w: it is signed by a key that the issuer does not publish", ErrInvalidToken)
	}
	return nil, nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, r.err)
}

// refresh fetches the keys of an issuer into its keyRing. When that fails those that
// are there stay.
func (k *IssuerKeys) refresh(url string, r *keyRing, done chan<- struct{}) {
	keys, err := k.fetch(url)
	k.mu.Lock()
	defer k.mu.Unlock()
	r.tried, r.err, r.done = time.Now(), err, nil
	if err == nil {
		r.keys, r.got = keys, r.tried
	}
	close(done)
}

// fetch asks an issuer where its keys are (OpenID Connect Discovery 1.0 section 4),
// and for these.
func (k *IssuerKeys) fetch(issuer string) ([]jose.JSONWebKey, error) {
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := k.get(strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", &metadata); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if metadata.Issuer != issuer {
		return nil, fmt.Errorf("metadata: they are of the issuer %q", metadata.Issuer)
	}
	if err := CheckIssuerURL(metadata.Keys); err != nil {
		return nil, fmt.Errorf("metadata: jwks_uri %q: %w", metadata.Keys, err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := k.get(metadata.Keys, &set); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	var keys []jose.JSONWebKey
	for _, text := range set.Keys[:min(len(set.Keys), maxIssuerKeys)] {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) == nil && signs(key) { // others are for others (RFC 7517 section 5)
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("keys: none is one by which tokens can be verified")
	}
	return keys, nil
}

// get reads a JSON document.
func (k *IssuerKeys) get(url string, into any) error {
	ctx, cancel := context.WithTimeout(k.ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := k.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %d", url, response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxIssuerBody))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s answers no JSON of at most %d bytes: %w", url, maxIssuerBody, err)
	}
	return nil
}
