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
)

const (
	// maxPayload is the largest body that is delivered (Document B section 6.1).
	maxPayload = 25 << 20
	// maxWaiting and maxWaitingBytes bound what waits to be sent; what comes on top
	// is dropped, and its record says so.
	maxQueued      = 1000
	maxQueuedBytes = 4 * maxPayload
	// receiverPatience is how long a receiver may take to answer.
	receiverTimeout = 10 * time.Second
	// remembered is how many deliveries GET /_service/deliveries lists.
	maxRecords = 100
)

// record is what became of a delivery.
type deliveryRecord struct {
	Delivery string `json:"delivery"` // its identifier
	Hook     int    `json:"hook_id"`
	Event    string `json:"event"`
	Action   string `json:"action,omitempty"`
	URL      string `json:"url"`
	Created  string `json:"created_at"`
	// State is waiting, answered, whatever the status, or failed.
	State    string   `json:"state"`
	Status   int      `json:"status,omitempty"`
	Duration Duration `json:"duration"`
	// Error is why nobody answered, or why it was not sent.
	Error string `json:"error,omitempty"`
}

// delivery is one event on its way to one webhook.
type delivery struct {
	deliveryRecord // guarded by deliveries.mu
	header         http.Header
	body           []byte
}

// deliveries are sent one after the other, in the order in which they came, each
// once: a receiver that was away finds out from the list of them.
type deliveryQueue struct {
	transport *http.Transport
	queue     chan *delivery

	mu          sync.Mutex // guards what follows
	queuedBytes int        // of the bodies that wait
	recent      []*delivery
}

// newDeliveries returns deliveries that are sent over connections of dial, nil the
// network's. Nobody sends them yet.
func newDeliveries(dial func(ctx context.Context, network, address string) (net.Conn, error)) *deliveryQueue {
	return &deliveryQueue{
		transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		queue:     make(chan *delivery, maxQueued),
	}
}

// add puts a delivery behind the others, unless it is too large or too many wait.
func (d *deliveryQueue) enqueue(item *delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recent = append(d.recent, item)
	d.recent = d.recent[max(0, len(d.recent)-maxRecords):]
	switch {
	case len(item.body) > maxPayload:
		item.fail(fmt.Sprintf("not delivered: %d bytes, and %d at most are", len(item.body), maxPayload))
	case d.queuedBytes+len(item.body) > maxQueuedBytes || len(d.queue) == maxQueued:
		item.fail("not delivered: too many are waiting")
	default:
		item.State = "waiting"
		d.queuedBytes += len(item.body)
		d.queue <- item // there is a place: whoever adds has the lock
	}
}

// fail notes why a delivery was not answered. Its body is of no more use.
func (item *delivery) fail(reason string) { item.State, item.Error, item.body = "failed", reason, nil }

// send sends what comes until ctx ends.
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
	item.Status, item.Duration = status, Duration(time.Since(began))
	if err != nil {
		item.fail(err.Error())
		return
	}
	item.State, item.body = "answered", nil
}

// post sends a delivery once, and returns the status of the answer. A redirect is
// an answer like any other.
func (d *deliveryQueue) post(ctx context.Context, item *delivery) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, receiverTimeout, fmt.Errorf("no answer within %v", receiverTimeout))
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

// records are the last deliveries, the newest first.
func (d *deliveryQueue) records() []deliveryRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]deliveryRecord, 0, len(d.recent))
	for _, item := range slices.Backward(d.recent) {
		all = append(all, item.deliveryRecord)
	}
	return all
}
