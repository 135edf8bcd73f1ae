// Package webhook receives and verifies webhook deliveries (Document B section 6), and reports each delivery once as an
// [Event].
//
// Invariants:
//   - A body is parsed only after its SHA-256 signature was verified.
//   - A repeated delivery is not reported again, as long as its identifier is remembered.
//   - An event identifies the changed data and its webhook. No other data is taken from a delivery.
//
// Entry point: [Receiver.Handler]. The catalogue decides which cache entries an event makes stale.
package webhook

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

const (
	// maxPayload is the size of the largest delivery in bytes (section 6.1).
	maxPayload = 25 << 20
	// maxConcurrent is the number of deliveries that are read at the same time.
	maxConcurrent = 4
	// readTimeout bounds the time until a delivery has arrived completely.
	readTimeout = 30 * time.Second
	// maxRemembered is the number of delivery identifiers that are remembered.
	maxRemembered = 16384
)

// Event is the content of one delivery.
type Event struct {
	Name, Delivery string
	// Repository is "owner/name" in lower case, or empty if the delivery names no repository.
	Repository string
	// Organization is the owner of the repository, or the organization of the delivery, in lower case.
	Organization string
	// Webhook is the kind of object that has the webhook: repository, organization or integration (an app).
	Webhook string
	// Subscribed lists the events that the webhook delivers, or has "*" for all events. Only the event ping has the list.
	Subscribed []string
	// OtherBranch is true for a push of a tag, or to a branch that is not the default branch.
	OtherBranch bool
}

// Coverage returns what the delivery shows about its webhook. ok is false if the delivery names no object, or does not
// show that the webhook delivers an event. A webhook of an app counts as a webhook of the repository, because the app may
// be installed in some repositories of the organization.
func (e Event) Coverage() (c cache.Coverage, ok bool) {
	c.Events, c.At = []string{e.Name}, time.Now()
	if e.Name == "ping" {
		c.Events, c.Complete = e.Subscribed, true
	}
	switch {
	case e.Repository != "":
		c.Object = "repo:" + e.Repository
	case e.Organization != "":
		c.Object = "org:" + e.Organization
	}
	c.Webhook = c.Object
	if e.Organization != "" && e.Webhook == "organization" {
		c.Webhook = "org:" + e.Organization
	}
	return c, c.Object != "" && len(c.Events) > 0 && (e.Repository != "" || e.Webhook == "organization")
}

// Receiver verifies deliveries and reports events. It is safe for concurrent use.
type Receiver struct {
	report func(Event)
	slots  chan struct{}
	seen   *lru.Cache[string, struct{}] // identifiers of deliveries
}

// NewReceiver returns a receiver that calls report for each new delivery.
func NewReceiver(report func(Event)) *Receiver {
	seen, err := lru.New[string, struct{}](maxRemembered)
	if err != nil {
		panic(err) // maxRemembered is positive
	}
	return &Receiver{report: report, slots: make(chan struct{}, maxConcurrent), seen: seen}
}

// Handler returns a handler for deliveries that are signed with the secret. The dialect contains the names of the
// headers.
func (v *Receiver) Handler(dialect *policy.Dialect, secret []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		respond := func(status int, text string) {
			h := w.Header()
			h.Set("Content-Type", "text/plain; charset=utf-8")
			h.Set("Cache-Control", "no-store")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text+"\n") // best effort: the sender may have disconnected
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			respond(http.StatusMethodNotAllowed, "method not allowed; use POST")
			return
		}
		select {
		case v.slots <- struct{}{}:
			defer func() { <-v.slots }()
		case <-r.Context().Done():
			return
		}
		// A connection that does not support deadlines keeps the deadlines of its server.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
		respond(v.receive(w, r, dialect, secret))
	})
}

// receive returns the status and the text of the response.
func (v *Receiver) receive(w http.ResponseWriter, r *http.Request, dialect *policy.Dialect, secret []byte) (status int, text string) {
	sum := hmac.New(sha256.New, secret)
	body, err := io.ReadAll(io.TeeReader(http.MaxBytesReader(w, r.Body, maxPayload), sum))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge, "delivery too large; the limit is 25 MB"
	}
	if err != nil {
		return http.StatusBadRequest, "request body incomplete"
	}
	if err := verify(r.Header, sum.Sum(nil)); err != nil {
		return http.StatusUnauthorized, err.Error()
	}
	e := Event{Name: r.Header.Get(dialect.Webhook.Event), Delivery: r.Header.Get(dialect.Webhook.Delivery)}
	e.Webhook = r.Header.Get(dialect.Webhook.TargetType)
	if e.Name == "" || e.Delivery == "" {
		return http.StatusBadRequest, fmt.Sprintf("header missing; send %s and %s", dialect.Webhook.Event, dialect.Webhook.Delivery)
	}
	if err := e.parse(r.Header.Get("Content-Type"), body); err != nil {
		return http.StatusBadRequest, err.Error()
	}
	if known, _ := v.seen.ContainsOrAdd(e.Delivery, struct{}{}); !known {
		v.report(e)
	}
	return http.StatusAccepted, "accepted"
}

// verify compares the signature in constant time (section 6.1).
func verify(h http.Header, sum []byte) error {
	values := h["X-Hub-Signature-256"]
	if len(values) != 1 {
		if h.Get("X-Hub-Signature") != "" {
			return errors.New("X-Hub-Signature-256 missing; a SHA-1 signature is not sufficient")
		}
		return errors.New("send X-Hub-Signature-256 exactly once")
	}
	text, ok := strings.CutPrefix(values[0], "sha256=")
	signature, err := hex.DecodeString(text)
	if !ok || err != nil || !hmac.Equal(signature, sum) {
		return errors.New("signature mismatch; sign with the configured secret")
	}
	return nil
}

// parse reads the repository, the organization, the branch and the webhook of a ping from JSON or from a form (section 6.3).
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
		Hook struct {
			Type   string   `json:"type"`
			Active *bool    `json:"active"`
			Events []string `json:"events"`
		} `json:"hook"`
	}
	if err := json.Unmarshal(body, &payload); err != nil {
		return fmt.Errorf("payload is not a JSON object: %w", err)
	}
	branch := payload.Repository.DefaultBranch
	e.OtherBranch = e.Name == "push" && payload.Ref != "" && branch != "" && payload.Ref != "refs/heads/"+branch
	if hook := payload.Hook; e.Name == "ping" && (hook.Active == nil || *hook.Active) {
		e.Webhook, e.Subscribed = cmp.Or(strings.ToLower(hook.Type), e.Webhook), hook.Events
	}
	e.Organization = strings.ToLower(payload.Organization.Login)
	owner, name, ok := strings.Cut(strings.ToLower(payload.Repository.FullName), "/")
	if ok && owner != "" && name != "" && !strings.Contains(name, "/") {
		e.Repository, e.Organization = owner+"/"+name, owner
	}
	return nil
}
