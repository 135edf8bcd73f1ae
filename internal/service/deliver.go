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
	maxWaiting      = 1000
	maxWaitingBytes = 4 * maxPayload
	// receiverPatience is how long a receiver may take to answer.
	receiverPatience = 10 * time.Second
	// remembered is how many deliveries GET /_service/deliveries lists.
	remembered = 100
)

// record is what became of a delivery.
type record struct {
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
	record // guarded by deliveries.mu
	header http.Header
	body   []byte
}

// deliveries are sent one after the other, in the order in which they came, each
// once: a receiver that was away finds out from the list of them.
type deliveries struct {
	transport *http.Transport
	queue     chan *delivery

	mu    sync.Mutex // guards what follows
	bytes int        // of the bodies that wait
	last  []*delivery
}

// newDeliveries returns deliveries that are sent over connections of dial, nil the
// network's. Nobody sends them yet.
func newDeliveries(dial func(ctx context.Context, network, address string) (net.Conn, error)) *deliveries {
	return &deliveries{
		transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		queue:     make(chan *delivery, maxWaiting),
	}
}

// add puts a delivery behind the others, unless it is too large or too many wait.
func (d *deliveries) add(x *delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = append(d.last, x)
	d.last = d.last[max(0, len(d.last)-remembered):]
	switch {
	case len(x.body) > maxPayload:
		x.fail(fmt.Sprintf("not delivered: %d bytes, and %d at most are", len(x.body), maxPayload))
	case d.bytes+len(x.body) > maxWaitingBytes || len(d.queue) == maxWaiting:
		x.fail("not delivered: too many are waiting")
	default:
		x.State = "waiting"
		d.bytes += len(x.body)
		d.queue <- x // there is a place: whoever adds has the lock
	}
}

// fail notes why a delivery was not answered. Its body is of no more use.
func (x *delivery) fail(why string) { x.State, x.Error, x.body = "failed", why, nil }

// send sends what comes until ctx ends.
func (d *deliveries) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-d.queue:
			d.sendOne(ctx, x)
		}
	}
}

func (d *deliveries) sendOne(ctx context.Context, x *delivery) {
	began := time.Now()
	size := len(x.body)
	status, err := d.post(ctx, x)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bytes -= size
	x.Status, x.Duration = status, Duration(time.Since(began))
	if err != nil {
		x.fail(err.Error())
		return
	}
	x.State, x.body = "answered", nil
}

// post sends a delivery once, and returns the status of the answer. A redirect is
// an answer like any other.
func (d *deliveries) post(ctx context.Context, x *delivery) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, receiverPatience, fmt.Errorf("no answer within %v", receiverPatience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.URL, bytes.NewReader(x.body))
	if err != nil {
		return 0, err
	}
	req.Header = x.header
	resp, err := d.transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// records are the last deliveries, the newest first.
func (d *deliveries) records() []record {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]record, 0, len(d.last))
	for _, x := range slices.Backward(d.last) {
		all = append(all, x.record)
	}
	return all
}
