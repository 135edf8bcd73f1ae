package service

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

// Webhook is the configuration of one receiver of events. [Service.SetWebhooks] and PUT /_service/webhooks set the
// webhooks.
type Webhook struct {
	// URL is the receiver's URL: http or https, without credentials.
	URL string `json:"url"`
	// Secret is the key that signs deliveries. An empty secret disables signatures. The service never returns the secret.
	Secret credential.Secret `json:"secret"`
	// ContentType is the type of the body: json (the default) or form.
	ContentType string `json:"content_type"`
	// Events lists the names of the subscribed events. The single element "*" subscribes to all events that are available
	// to the webhook's kind.
	Events []string `json:"events"`
	// Target is a repository "owner/name", the login of an organization, or "app". The app is installed on every
	// organization.
	Target string `json:"target"`
}

// hook is a validated webhook with its target.
type hook struct {
	Webhook
	id   int
	kind string // onRepository, onOrganization or onApp
	// repository or organization is the target. Both are nil for the app.
	repository   *repository
	organization *account
	targetID     int
}

// SetWebhooks replaces all webhooks. An error names the field, such as "webhooks[0].url", and leaves the webhooks
// unchanged.
func (s *Service) SetWebhooks(all []Webhook) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	hooks := make([]*hook, 0, len(all))
	for i, w := range all {
		k, err := s.world.hook(w)
		if err != nil {
			return fmt.Errorf("webhooks[%d].%w", i, err)
		}
		k.id = s.lastHook + i + 1
		hooks = append(hooks, k)
	}
	s.hooks, s.lastHook = hooks, s.lastHook+len(hooks)
	return nil
}

// hook validates a webhook and looks up its target.
func (w *world) hook(c Webhook) (*hook, error) {
	c.ContentType = cmp.Or(c.ContentType, "json")
	k := &hook{
		Webhook: c, kind: onApp, targetID: appID,
		repository: w.repositoryNamed(c.Target), organization: w.accountNamed(true, c.Target),
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, errors.New("url: must be http://HOST/PATH or https://HOST/PATH")
	case u.User != nil:
		return nil, errors.New("url: must not contain credentials")
	case c.ContentType != "json" && c.ContentType != "form":
		return nil, fmt.Errorf("content_type: %q: must be json or form", c.ContentType)
	case k.repository != nil:
		k.kind, k.Target, k.targetID = onRepository, k.repository.fullName(), k.repository.id
	case k.organization != nil:
		k.kind, k.Target, k.targetID = onOrganization, k.organization.login, k.organization.id
	case c.Target != onApp:
		return nil, fmt.Errorf("target: %q: must be a repository (owner/name), an organization or app", c.Target)
	}
	return k, k.checkEvents()
}

// checkEvents returns an error for unknown events and for events that are not available to the webhook's kind.
func (k *hook) checkEvents() error {
	if len(k.Events) == 0 {
		return errors.New(`events: must name at least one event, or be ["*"]`)
	}
	for i, name := range k.Events {
		switch kind, known := eventKinds()[name]; {
		case name == "*" && len(k.Events) == 1:
		case name == "*":
			return fmt.Errorf(`events[%d]: "*" must be the only element`, i)
		case !known:
			return fmt.Errorf("events[%d]: %q: must be one of %s", i, name, strings.Join(slices.Sorted(maps.Keys(eventKinds())), ", "))
		case !kind.isAvailableTo(k.kind):
			return fmt.Errorf("events[%d]: %s is not available to webhooks of kind %s; available to %s", i, name, k.kind, strings.Join(kind.Targets, ", "))
		}
	}
	return nil
}

// receives reports whether a webhook receives an event (Document B section 6.2).
func (k *hook) receives(e *event) bool {
	kind := eventKinds()[e.name]
	switch {
	case !kind.isAvailableTo(k.kind), k.Events[0] != "*" && !slices.Contains(k.Events, e.name):
		return false
	case k.kind != onApp && len(kind.Actions) > 0 && !slices.Contains(kind.Actions, e.action):
		return false
	}
	isTarget := k.repository == nil || k.repository == e.repository
	return isTarget && (k.organization == nil || k.organization == e.organization)
}

// deliver enqueues the deliveries of an event and returns their IDs. Encoding a large payload is slow, so POST
// /_service/events does not hold Service.mu. A write of the API holds it, and has a small payload.
func (s *Service) deliver(e *event) []string {
	texts, ids := map[string][]byte{}, []string{}
	for _, k := range e.subscribers {
		if texts[k.kind] == nil {
			texts[k.kind] = encode(e.payloads[k.kind])
		}
		id := uuid.NewString() // does not depend on the seed: two processes must not send the same ID
		s.deliveries.enqueue(k.delivery(s.config.Dialect, e, id, texts[k.kind]))
		ids = append(ids, id)
	}
	return ids
}

// delivery returns the delivery of an event to the webhook, with the header of Document B section 6.1.
func (k *hook) delivery(dialect *policy.Dialect, e *event, id string, payload []byte) *delivery {
	body, contentType := payload, "application/json"
	if k.ContentType == "form" {
		body, contentType = []byte("payload="+url.QueryEscape(string(payload))), "application/x-www-form-urlencoded"
	}
	targetType := cmp.Or(map[string]string{onApp: "integration"}[k.kind], k.kind) // as in the bypass actors of rulesets
	header := http.Header{}
	for name, value := range map[string]string{
		dialect.Webhook.HookID: itoa(k.id), dialect.Webhook.Event: e.name, dialect.Webhook.Delivery: id,
		dialect.Webhook.TargetType: targetType, dialect.Webhook.TargetID: itoa(k.targetID),
		"User-Agent": dialect.Webhook.UserAgent + "1", "Content-Type": contentType, "Accept": "*/*",
	} {
		header.Set(name, value)
	}
	if k.Secret != "" {
		header.Set("X-Hub-Signature", "sha1="+k.sign(sha1.New, body))
		header.Set("X-Hub-Signature-256", "sha256="+k.sign(sha256.New, body))
	}
	return &delivery{
		deliveryRecord: deliveryRecord{Delivery: id, Hook: k.id, Event: e.name, Action: e.action, URL: k.URL, Created: timestamp(e.at)},
		header:         header, body: body,
	}
}

func (k *hook) sign(by func() hash.Hash, body []byte) string {
	sum := hmac.New(by, []byte(k.Secret.Reveal()))
	_, _ = sum.Write(body) // a hash returns no error
	return hex.EncodeToString(sum.Sum(nil))
}

// putWebhooks handles PUT /_service/webhooks: it replaces all webhooks. Its errors contain the index of the webhook.
func (s *Service) putWebhooks(_ *http.Request, body []byte) (any, error) {
	var texts []json.RawMessage
	if err := unmarshalStrict(body, &texts); err != nil {
		return nil, err
	}
	all := make([]Webhook, len(texts))
	for i, text := range texts {
		if err := unmarshalStrict(text, &all[i]); err != nil {
			return nil, fmt.Errorf("webhooks[%d].%w", i, err)
		}
	}
	if err := s.SetWebhooks(all); err != nil {
		return nil, err
	}
	return s.shownWebhooks(), nil
}

// shownWebhooks returns the webhooks without their secrets.
func (s *Service) shownWebhooks() []any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return renderAll(s.hooks, func(k *hook) object {
		return object{{"id", k.id}, {"url", k.URL}, {"content_type", k.ContentType}, {"events", k.Events}, {"target", k.Target}, {"signed", k.Secret != ""}}
	})
}

const (
	// maxPayload is the size of the largest body that is sent (Document B section 6.1).
	maxPayload = 25 << 20
	// maxQueued and maxQueuedBytes bound the queue. Deliveries beyond these bounds are dropped, and their records contain
	// an error.
	maxQueued      = 1000
	maxQueuedBytes = 4 * maxPayload
	// receiverTimeout is the time within which a receiver must respond.
	receiverTimeout = 10 * time.Second
	// maxRecords is the number of deliveries that GET /_service/deliveries lists.
	maxRecords = 100
)

// deliveryRecord describes a delivery and its result.
type deliveryRecord struct {
	Delivery string `json:"delivery"` // the identifier
	Hook     int    `json:"hook_id"`
	Event    string `json:"event"`
	Action   string `json:"action,omitempty"`
	URL      string `json:"url"`
	Created  string `json:"created_at"`
	// State is waiting, answered (with any status) or failed.
	State    string         `json:"state"`
	Status   int            `json:"status,omitempty"`
	Duration quirk.Duration `json:"duration"`
	// Error describes why a delivery failed.
	Error string `json:"error,omitempty"`
}

// delivery is one event to be sent to one webhook.
type delivery struct {
	deliveryRecord // guarded by deliveryQueue.mu
	header         http.Header
	body           []byte
}

// deliveryQueue sends deliveries in order, one at a time, and each delivery once. A receiver that was unavailable finds
// missed deliveries in GET /_service/deliveries.
type deliveryQueue struct {
	transport *http.Transport
	queue     chan *delivery

	mu          sync.Mutex // guards the fields below
	queuedBytes int        // total size of the queued bodies
	recent      []*delivery
}

// newDeliveryQueue returns a queue that connects with dial, or over the network if dial is nil. The queue sends nothing
// until run is called.
func newDeliveryQueue(dial func(ctx context.Context, network, address string) (net.Conn, error)) *deliveryQueue {
	return &deliveryQueue{
		transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		queue:     make(chan *delivery, maxQueued),
	}
}

// enqueue appends a delivery to the queue. It drops the delivery if the payload is too large or the queue is full.
func (d *deliveryQueue) enqueue(item *delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recent = append(d.recent, item)
	d.recent = d.recent[max(0, len(d.recent)-maxRecords):]
	switch {
	case len(item.body) > maxPayload:
		item.fail(fmt.Sprintf("not delivered: payload has %d bytes; the maximum is %d", len(item.body), maxPayload))
	case d.queuedBytes+len(item.body) > maxQueuedBytes || len(d.queue) == maxQueued:
		item.fail("not delivered: the queue is full")
	default:
		item.State = "waiting"
		d.queuedBytes += len(item.body)
		d.queue <- item // does not block: only enqueue sends, and it holds mu
	}
}

// fail records why a delivery failed, and releases the body.
func (item *delivery) fail(reason string) { item.State, item.Error, item.body = "failed", reason, nil }

// run sends queued deliveries until ctx ends.
func (d *deliveryQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case item := <-d.queue:
			began := time.Now()
			status, err := d.post(ctx, item)
			d.mu.Lock()
			d.queuedBytes -= len(item.body)
			item.Status, item.Duration = status, quirk.Duration(time.Since(began))
			if item.State, item.body = "answered", nil; err != nil {
				item.fail(err.Error())
			}
			d.mu.Unlock()
		}
	}
}

// post sends a delivery once and returns the status of the response. It does not follow redirects.
func (d *deliveryQueue) post(ctx context.Context, item *delivery) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, receiverTimeout, fmt.Errorf("no response within %v", receiverTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, item.URL, bytes.NewReader(item.body))
	if err != nil {
		return 0, err
	}
	req.Header = item.header
	resp, err := d.transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// records returns the records of the last deliveries, newest first.
func (d *deliveryQueue) records() []deliveryRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]deliveryRecord, 0, len(d.recent))
	for _, item := range slices.Backward(d.recent) {
		all = append(all, item.deliveryRecord)
	}
	return all
}
