package service

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
)

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
			d.send(ctx, item)
		}
	}
}

func (d *deliveryQueue) send(ctx context.Context, item *delivery) {
	began := time.Now()
	size := len(item.body)
	status, err := d.post(ctx, item)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queuedBytes -= size
	item.Status, item.Duration = status, quirk.Duration(time.Since(began))
	if err != nil {
		item.fail(err.Error())
		return
	}
	item.State, item.body = "answered", nil
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
