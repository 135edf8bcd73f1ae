// Package webhook receives deliveries (Document B section 6): it verifies them, and
// tells once what each is about.
//
// Invariants:
//   - Nothing is read from a body whose SHA-256 signature over its raw bytes is not
//     that of the secret.
//   - A delivery is told once, however often it comes, as far back as so many are
//     remembered.
//   - A delivery is a hint that something has changed; no data is taken from it.
//
// It does not know what becomes stale: the catalogue does.
package webhook

import (
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
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// maxPayload is the largest delivery (section 6.1).
	maxPayload = 25 << 20
	// atOnce bounds how many deliveries are read at the same time.
	atOnce = 4
	// patience is how long a delivery may take to come: nobody holds a place for ever.
	patience = 30 * time.Second
	// remembered is of how many deliveries the identifiers are kept.
	remembered = 16384
)

// Event is what a delivery tells.
type Event struct {
	Name, Delivery string
	// Repository is "owner/name"; empty where the delivery names none.
	Repository string
	// Organization is the owner's name, or the organization's.
	Organization string
	// Aside is whether it is a push to another branch than the repository's default, or
	// of a tag.
	Aside bool
}

// Receiver is a handler of deliveries. It is safe for concurrent use.
type Receiver struct {
	changed func(Event)
	slots   chan struct{}

	mu   sync.Mutex // guards what follows
	seen map[string]bool
	ring []string // the same, the oldest at next
	next int
}

// NewReceiver returns a receiver that tells of each delivery.
func NewReceiver(changed func(Event)) *Receiver {
	return &Receiver{changed: changed, slots: make(chan struct{}, atOnce), seen: map[string]bool{}, ring: make([]string, remembered)}
}

// Handler receives deliveries in the words of a dialect that are signed with the
// secret.
func (v *Receiver) Handler(dialect *policy.Dialect, secret []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			answer(w, http.StatusMethodNotAllowed, "deliveries are sent by POST")
			return
		}
		select {
		case v.slots <- struct{}{}:
			defer func() { <-v.slots }()
		case <-r.Context().Done():
			return // nobody is there to be told
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(patience)) // where it cannot be set the server's own must do
		status, text := v.receive(w, r, dialect, secret)
		answer(w, status, text)
	})
}

func answer(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a sender that is gone does not mind
}

func (v *Receiver) receive(w http.ResponseWriter, r *http.Request, dialect *policy.Dialect, secret []byte) (status int, text string) {
	sum := hmac.New(sha256.New, secret)
	body, err := io.ReadAll(io.TeeReader(http.MaxBytesReader(w, r.Body, maxPayload), sum))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, "a delivery has 25 MB at most"
	case err != nil:
		return http.StatusBadRequest, "the body ended too early"
	}
	if err := verify(r.Header, sum.Sum(nil)); err != nil {
		return http.StatusUnauthorized, err.Error()
	}
	e := Event{Name: r.Header.Get(dialect.Webhook.Event), Delivery: r.Header.Get(dialect.Webhook.Delivery)}
	if e.Name == "" || e.Delivery == "" {
		return http.StatusBadRequest, fmt.Sprintf("%s and %s are needed", dialect.Webhook.Event, dialect.Webhook.Delivery)
	}
	if err := e.read(r.Header.Get("Content-Type"), body); err != nil {
		return http.StatusBadRequest, err.Error()
	}
	if v.isNew(e.Delivery) {
		v.changed(e)
	}
	return http.StatusAccepted, "accepted"
}

// verify compares the signature in constant time (section 6.1).
func verify(h http.Header, sum []byte) error {
	values := h["X-Hub-Signature-256"]
	if len(values) != 1 {
		if h.Get("X-Hub-Signature") != "" {
			return errors.New("a signature by SHA-1 alone is not enough: X-Hub-Signature-256 is needed")
		}
		return errors.New("X-Hub-Signature-256 is needed, once")
	}
	shown, ok := strings.CutPrefix(values[0], "sha256=")
	signature, err := hex.DecodeString(shown)
	if !ok || err != nil || !hmac.Equal(signature, sum) {
		return errors.New("the signature is not that of the secret")
	}
	return nil
}

// isNew remembers a delivery, and reports whether it was not seen before.
func (v *Receiver) isNew(delivery string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen[delivery] {
		return false
	}
	delete(v.seen, v.ring[v.next])
	v.ring[v.next], v.seen[delivery] = delivery, true
	v.next = (v.next + 1) % len(v.ring)
	return true
}

// payload is what of a delivery tells where something has changed (section 6.3).
type payload struct {
	Ref        string `json:"ref"`
	Repository struct {
		FullName      string `json:"full_name"`
		DefaultBranch string `json:"default_branch"`
	} `json:"repository"`
	Organization struct {
		Login string `json:"login"`
	} `json:"organization"`
}

// read reads where the event happened, from JSON or from a form.
func (e *Event) read(contentType string, body []byte) error {
	if media, _, _ := strings.Cut(contentType, ";"); strings.EqualFold(strings.TrimSpace(media), "application/x-www-form-urlencoded") {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return fmt.Errorf("the form cannot be read: %w", err)
		}
		body = []byte(form.Get("payload"))
	}
	var p payload
	if err := json.Unmarshal(body, &p); err != nil {
		return fmt.Errorf("the payload is no JSON object: %w", err)
	}
	e.Aside = e.Name == "push" && p.Ref != "" && p.Repository.DefaultBranch != "" && p.Ref != "refs/heads/"+p.Repository.DefaultBranch
	e.Organization = strings.ToLower(p.Organization.Login)
	owner, name, ok := strings.Cut(strings.ToLower(p.Repository.FullName), "/")
	if ok && owner != "" && name != "" && !strings.Contains(name, "/") {
		e.Repository, e.Organization = owner+"/"+name, owner
	}
	return nil
}
