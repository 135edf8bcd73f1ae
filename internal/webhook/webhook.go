// Package webhook receives and verifies webhook deliveries (Document B section 6), and reports each delivery once as an
// [Event].
//
// Invariants:
//   - A body is parsed only after its SHA-256 signature was verified.
//   - A repeated delivery is not reported again, as long as its identifier is remembered.
//   - A body counts for the event of its first delivery only, as long as the body is remembered. The signature covers
//     neither the name of the event nor the identifier, nor the kind of the webhook.
//   - A repeated body shows nothing about its webhook.
//   - An event identifies the changed data and its webhook. No other data is taken from a delivery.
//   - A delivery waits for no other delivery. One address cannot use the memory for the bodies of other addresses.
//
// Entry point: [Receiver.Handler]. The catalogue decides which cache entries an event makes stale.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

const (
	// maxPayload is the size of the largest delivery in bytes (Document B section 6.1).
	maxPayload = 25 << 20
	// maxMemory bounds the bodies of all unfinished deliveries in bytes, and maxMemoryPerAddress those of one address. A
	// body reserves its memory in blocks of blockSize bytes.
	maxMemory, maxMemoryPerAddress, blockSize = 4 * maxMemoryPerAddress, 32 << 20, 64 << 10
	// maxPause bounds each pause within a body, and readTimeout the time until the body has arrived. The upstream closes
	// the connection after ten seconds, too.
	maxPause, readTimeout = 5 * time.Second, 10 * time.Second
	// maxRemembered is the number of delivery identifiers, and of bodies, that are remembered.
	maxRemembered = 16384
	// rememberedFor is the time for which all replicas remember a body. It exceeds the time for which a delivery shows that
	// its webhook works.
	rememberedFor = 25 * time.Hour
)

// Event is the content of one delivery.
type Event struct {
	Name, Delivery string
	// Repository is "owner/name" in lower case, or empty if the delivery names no repository.
	Repository string
	// Organization is the owner of the repository, or the organization of the delivery, in lower case.
	Organization string
	// Former is the former name of a renamed or transferred object, in lower case: "owner/name" of a repository, or the name of
	// an organization or a user. It is empty for other events.
	Former string
	// Webhook is the kind of object that has the webhook: repository or organization. Only the events ping and meta have it.
	Webhook string
	// Subscribed lists the events that the webhook delivers, or has "*" for all events. Only the event ping has the list.
	Subscribed []string
	// OtherBranch is true for a push of a tag, or to a branch that is not the default branch.
	OtherBranch bool
	// Repeated is true if the body was delivered before.
	Repeated bool
	// App is true if the webhook belongs to an app. Installation is the number of the app's installation, or 0.
	App          bool
	Installation int64
}

// Coverage returns what the delivery shows about its webhook. ok is false if the delivery names no object, or does not
// show that the webhook delivers an event. A repeated delivery shows nothing, because anyone who has seen the first may
// send it. The coverage depends on the signed body only: the body of an event in a repository does not show whether the
// organization has the webhook. A webhook of an app counts as a webhook of the repository, because the app may be
// installed in some repositories of the organization.
func (e Event) Coverage() (c cache.Coverage, ok bool) {
	c.Events, c.At = []string{e.Name}, time.Now()
	ended := e.Name == "meta" // the webhook was deleted
	if c.Complete = ended || e.Name == "ping"; c.Complete {
		c.Events = e.Subscribed
	}
	switch {
	case e.Repository != "":
		c.Object = "repo:" + e.Repository
	case e.Organization != "":
		c.Object = "org:" + e.Organization
	}
	c.Webhook = c.Object
	ofOrganization := !e.App
	if c.Complete {
		if ofOrganization = e.Webhook == "organization"; ofOrganization && e.Organization != "" {
			c.Webhook = "org:" + e.Organization
		}
	}
	return c, c.Object != "" && (len(c.Events) > 0 || ended) && !e.Repeated && (e.Repository != "" || ofOrganization)
}

// Receiver verifies deliveries and reports events. It is safe for concurrent use.
type Receiver struct {
	// Once reports whether a call is the first one with a name at any replica before end. Nil means that there is one
	// replica, which remembers the bodies itself.
	Once   func(ctx context.Context, name string, end time.Time) (bool, error)
	report func(Event)
	memory memory
	seen   *lru.Cache[string, struct{}]          // identifiers of deliveries
	events *lru.Cache[[sha256.Size]byte, string] // event of each body, by the signature
}

// memory counts the bytes that are reserved for bodies.
type memory struct {
	mu         sync.Mutex
	total      int
	perAddress map[netip.Addr]int // without addresses that have nothing reserved
}

// reserve reserves a block for an address and reports whether it succeeded.
func (m *memory) reserve(address netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.total+blockSize > maxMemory || m.perAddress[address]+blockSize > maxMemoryPerAddress {
		return false
	}
	m.total += blockSize
	m.perAddress[address] += blockSize
	return true
}

// release returns blocks of an address.
func (m *memory) release(address netip.Addr, blocks int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total -= blocks * blockSize
	if m.perAddress[address] -= blocks * blockSize; m.perAddress[address] == 0 {
		delete(m.perAddress, address)
	}
}

// Config configures a handler.
type Config struct {
	// Dialect contains the names of the headers.
	Dialect *policy.Dialect
	// Secrets are the accepted keys of the signatures.
	Secrets []credential.Secret
	// Refused is called with the reason for each refused delivery, the name of its event and the client's address. The name is
	// not verified.
	Refused func(reason Refusal, event string, address netip.Addr)
	// RateLimiter bounds the deliveries of each address together with its other requests; nil has no bound.
	RateLimiter    *inbound.RateLimiter
	TrustedProxies inbound.TrustedProxies
}

// NewReceiver returns a receiver that calls report for each new delivery.
func NewReceiver(report func(Event)) *Receiver {
	seen, _ := lru.New[string, struct{}](maxRemembered) // fails only for a size below 1
	events, _ := lru.New[[sha256.Size]byte, string](maxRemembered)
	return &Receiver{report: report, memory: memory{perAddress: map[netip.Addr]int{}}, seen: seen, events: events}
}

// Refusal is the reason for a refused delivery.
type Refusal string

// Reasons for refused deliveries.
const (
	RefusedRate      Refusal = "rate"      // too many requests from the address
	RefusedMethod    Refusal = "method"    // not POST
	RefusedMemory    Refusal = "memory"    // too many deliveries in progress
	RefusedBody      Refusal = "body"      // too large, too slow or incomplete
	RefusedSignature Refusal = "signature" // missing, or of another secret
	RefusedHeader    Refusal = "header"    // without the name of the event or the identifier
	RefusedPayload   Refusal = "payload"   // no JSON object
	RefusedReplay    Refusal = "replay"    // the body of a delivery of another event
)

// Handler returns a handler for deliveries that are signed with one of the secrets.
func (v *Receiver) Handler(c Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		status, text, refusal := v.receive(c, w, r)
		if refusal != "" {
			c.Refused(refusal, r.Header.Get(c.Dialect.Webhook.Event), c.TrustedProxies.ClientAddress(r))
		}
		switch status {
		case http.StatusMethodNotAllowed:
			h.Set("Allow", http.MethodPost)
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			h.Set("Retry-After", "1")
		}
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text+"\n") // best effort: the sender may have disconnected
	})
}

// extraCost returns the number of further requests as which a delivery counts: one per 16 KiB, up to 1 MiB, because the
// time to read and verify a body grows with its length. A negative length is unknown.
func extraCost(length int64) int {
	const most = 1 << 20
	if length < 0 || length > most {
		length = most
	}
	return int(length >> 14)
}

// receive returns the status and the text of the response, and the reason for a refusal.
func (v *Receiver) receive(c Config, w http.ResponseWriter, r *http.Request) (status int, text string, refusal Refusal) {
	address := c.TrustedProxies.ClientAddress(r)
	if !c.RateLimiter.Allow(address, time.Now()) || c.RateLimiter.AllowN(address, extraCost(r.ContentLength), time.Now()) > 0 {
		return http.StatusTooManyRequests, "too many requests from this address", RefusedRate
	}
	if r.Method != http.MethodPost {
		return http.StatusMethodNotAllowed, "method not allowed; use POST", RefusedMethod
	}
	r, limited := inbound.LimitBody(w, r, maxPause, readTimeout)
	defer limited.Detach()
	var (
		err    error
		body   bytes.Buffer
		blocks int
		client = inbound.ClientOf(address)
		sums   = signers(c.Secrets)
		source = io.TeeReader(http.MaxBytesReader(w, r.Body, maxPayload), sums)
	)
	defer func() { v.memory.release(client, blocks) }()
	for err == nil {
		if !v.memory.reserve(client) {
			return http.StatusServiceUnavailable, "too many deliveries in progress; retry later", RefusedMemory
		}
		blocks++
		_, err = io.CopyN(&body, source, blockSize)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge, "delivery too large; the limit is 25 MB", RefusedBody
	}
	if slow := limited.Err(); slow != nil && slow.Timeout {
		return http.StatusRequestTimeout, "request body too slow", RefusedBody
	}
	if !errors.Is(err, io.EOF) {
		return http.StatusBadRequest, "request body incomplete", RefusedBody
	}
	sum, err := sums.verify(r.Header)
	if err != nil {
		return http.StatusUnauthorized, err.Error(), RefusedSignature
	}
	names := c.Dialect.Webhook
	e := Event{Name: r.Header.Get(names.Event), Delivery: r.Header.Get(names.Delivery)}
	if e.Name == "" || e.Delivery == "" {
		return http.StatusBadRequest, fmt.Sprintf("header missing; send %s and %s", names.Event, names.Delivery), RefusedHeader
	}
	if err := e.parse(r.Header.Get("Content-Type"), body.Bytes()); err != nil {
		return http.StatusBadRequest, err.Error(), RefusedPayload
	}
	first, known, _ := v.events.PeekOrAdd([sha256.Size]byte(sum), e.Name)
	if known && first != e.Name {
		return http.StatusConflict, "a delivery with this body had another event", RefusedReplay
	}
	if e.Repeated = known; !known && v.Once != nil {
		first, err := v.Once(r.Context(), "delivery "+hex.EncodeToString(sum[:16]), time.Now().Add(rememberedFor))
		e.Repeated = err != nil || !first // unknown without the shared store
	}
	e.App = e.App || r.Header.Get(names.TargetType) == "integration" // an unsigned field may only narrow the coverage
	if known, _ := v.seen.ContainsOrAdd(e.Delivery, struct{}{}); !known {
		v.report(e)
	}
	return http.StatusAccepted, "accepted", ""
}

// bodySigner computes the signatures of a body with all secrets.
type bodySigner []hash.Hash

func signers(secrets []credential.Secret) (s bodySigner) {
	for _, secret := range secrets {
		s = append(s, hmac.New(sha256.New, []byte(secret.Reveal())))
	}
	return s
}

// Write never returns an error.
func (s bodySigner) Write(p []byte) (int, error) {
	for _, h := range s {
		_, _ = h.Write(p)
	}
	return len(p), nil
}

// verify compares the signatures in constant time (Document B section 6.1), and returns the signature that matches.
func (s bodySigner) verify(h http.Header) (matching []byte, err error) {
	values := h["X-Hub-Signature-256"]
	if len(values) != 1 {
		if h.Get("X-Hub-Signature") != "" {
			return nil, errors.New("X-Hub-Signature-256 missing; a SHA-1 signature is not sufficient")
		}
		return nil, errors.New("send X-Hub-Signature-256 exactly once")
	}
	text, ok := strings.CutPrefix(values[0], "sha256=")
	signature, err := hex.DecodeString(text)
	if ok && err == nil {
		for _, h := range s {
			if sum := h.Sum(nil); hmac.Equal(signature, sum) {
				matching = sum
			}
		}
	}
	if matching == nil {
		return nil, errors.New("signature mismatch; sign with a configured secret")
	}
	return matching, nil
}

// parse reads the repository, the organization, the branch and the webhook of a ping from JSON or from a form (sections 6.1 and 6.3).
func (e *Event) parse(contentType string, body []byte) error {
	if media, _, _ := strings.Cut(contentType, ";"); strings.EqualFold(strings.TrimSpace(media), "application/x-www-form-urlencoded") {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return fmt.Errorf("invalid form: %w", err)
		}
		body = []byte(form.Get("payload"))
	}
	var payload struct {
		Ref        string `json:"ref"`
		Repository struct {
			FullName      string `json:"full_name"`
			DefaultBranch string `json:"default_branch"`
		} `json:"repository"`
		Organization struct {
			Login string `json:"login"`
		} `json:"organization"`
		Changes      map[string]any `json:"changes"`
		Installation *struct {      // only deliveries to apps have it
			ID int64 `json:"id"`
		} `json:"installation"`
		Hook struct {
			Type   string   `json:"type"`
			Active *bool    `json:"active"`
			Events []string `json:"events"`
		} `json:"hook"`
	}
	err := json.Unmarshal(body, &payload)
	// A member of another type is as if it were missing. A refused delivery would leave stale responses.
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); err != nil && (!ok || mismatch.Field == "") {
		return fmt.Errorf("payload is not a JSON object: %w", err)
	}
	branch := payload.Repository.DefaultBranch
	e.OtherBranch = e.Name == "push" && payload.Ref != "" && branch != "" && payload.Ref != "refs/heads/"+branch
	switch hook := payload.Hook; {
	case e.Name == "ping" && (hook.Active == nil || *hook.Active):
		e.Webhook, e.Subscribed = strings.ToLower(hook.Type), hook.Events
	case e.Name == "meta":
		e.Webhook = strings.ToLower(hook.Type)
	}
	if e.App = payload.Installation != nil; e.App {
		e.Installation = payload.Installation.ID
	}
	e.Organization = strings.ToLower(payload.Organization.Login)
	owner, name, ok := strings.Cut(strings.ToLower(payload.Repository.FullName), "/")
	if ok && owner != "" && name != "" && !strings.Contains(name, "/") {
		e.Repository, e.Organization = owner+"/"+name, owner
	}
	e.Former = policy.FormerName(e.Repository, map[string]any{"changes": payload.Changes})
	return nil
}
