package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
)

const pushWidgets = `{"event": "push", "repository": "acme/widgets"}`

// listDeliveries returns the response to GET /_service/deliveries.
func (t *tester) listDeliveries() []deliveryRecord {
	t.Helper()
	return decode[[]deliveryRecord](t, t.call("", "GET /_service/deliveries", 200, ""))
}

func TestDeliveriesAreListedWithTheirOutcome(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		answer    http.HandlerFunc
		state     string
		status    int
		duration  time.Duration
		wantError string
	}{
		"accepted":          {status(http.StatusNoContent), "answered", 204, 0, ""},
		"refused":           {status(http.StatusUnauthorized), "answered", 401, 0, ""},
		"slow":              {func(_ http.ResponseWriter, r *http.Request) { wait(r, 9*time.Second) }, "answered", 200, 9 * time.Second, ""},
		"no answer":         {func(_ http.ResponseWriter, r *http.Request) { wait(r, time.Hour) }, "failed", 0, 10 * time.Second, "no response within 10s"},
		"connection closed": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "failed", 0, 0, "EOF"},
		"redirected":        {http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect).ServeHTTP, "answered", 307, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			runWithService(t, func(t *tester) {
				box := t.startReceiverWith(c.answer, webhookOn("acme"))
				answer := t.createEvent(`{"event": "release", "action": "published", "repository": "acme/widgets"}`, 202)
				time.Sleep(time.Minute)
				if got := box.take(); len(got) != 1 || got[0].target != "/hook?a=b" {
					t.Errorf("the receiver got %d deliveries, want 1", len(got))
				}
				got := t.listDeliveries()
				want := deliveryRecord{
					answer["deliveries"].([]any)[0].(string), 1, "release", "published", "http://receiver.test/hook?a=b", "2000-01-01T00:00:00Z",
					c.state, c.status, quirk.Duration(c.duration), c.wantError,
				}
				failIf(t, len(got) != 1 || got[0] != want, "got %+v, want %+v", got, want)
			})
		})
	}
}

// wait blocks for a duration or until the request ends.
func wait(r *http.Request, d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}

func TestDeliveryFailsWithoutReceiver(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.deliveries.transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") }
		t.setWebhooks(webhookOn("acme"))
		t.createEvent(pushWidgets, 202)
		synctest.Wait()
		t.wantEqual("state and error", [2]string{"failed", "connection refused"}, [2]string{t.listDeliveries()[0].State, t.listDeliveries()[0].Error})
	})
}

// TestSlowReceiverDelaysDeliveriesOnly checks that requests and Close do not wait for a
// receiver that sends no answer. The other deliveries keep their order.
func TestSlowReceiverDelaysDeliveriesOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		first := true
		box := t.startReceiverWith(func(_ http.ResponseWriter, r *http.Request) {
			if first {
				first = false
				wait(r, time.Hour)
			}
		}, webhookOn("acme"))
		began := time.Now()
		t.createEvent(`{"event": "release", "action": "created", "repository": "acme/widgets"}`, 202)
		t.createEvent(pushWidgets, 202)
		t.createEvent(`{"event": "release", "action": "deleted", "repository": "acme/widgets"}`, 202)
		t.call("owner", "GET /repos/acme/widgets/subscribers", 200, "")
		synctest.Wait()
		if got := t.listDeliveries(); time.Since(began) > 0 || got[0].State != "waiting" || got[1].State != "waiting" || got[2].State != "waiting" || len(box.take()) != 1 {
			t.Errorf("after %v: got %+v, want three waiting deliveries", time.Since(began), got)
		}
		time.Sleep(10 * time.Second)
		var order []string
		for _, d := range box.take() {
			order = append(order, d.header.Get("X-Service-Event"))
		}
		t.wantEqual("order", []string{"push", "release"}, order)
		first = true
		t.createEvent(pushWidgets, 202)
		synctest.Wait()
		began = time.Now()
		t.s.Close()
		got := t.listDeliveries()[0]
		failIf(t, time.Since(began) > 0 || got.State != "failed" || got.Error != "context canceled", "closed after %v: got %+v", time.Since(began), got)
	})
}

func TestLastHundredDeliveriesAreListedNewestFirst(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.startReceiver(webhookOn("acme"))
		var all []string
		for range maxRecords + 5 {
			all = append(all, t.createEvent(pushWidgets, 202)["deliveries"].([]any)[0].(string))
		}
		synctest.Wait()
		got := t.listDeliveries()
		failIf(t, len(got) != maxRecords || got[0].Delivery != all[len(all)-1] || got[maxRecords-1].Delivery != all[5], "got %d deliveries, from %s to %s", len(got), got[0].Delivery, got[len(got)-1].Delivery)
	})
}

// TestLargePayloadsAreNotDelivered covers Document B section 6.1.
func TestLargePayloadsAreNotDelivered(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"), webhookOn("acme/secret"))
		t.createEvent(fmt.Sprintf(`{"event": "push", "repository": "acme/widgets", "commits": %d}`, maxCommits), 202)
		t.createEvent(`{"event": "push", "repository": "acme/secret", "commits": 1000}`, 202)
		if got := box.take(); len(got) != 1 || !strings.Contains(string(got[0].body[len(got[0].body)-9000:]), "acme/secret") {
			t.Errorf("got %d deliveries, want 1", len(got))
		}
		got := t.listDeliveries()[1]
		failIf(t, got.State != "failed" || !strings.HasSuffix(got.Error, "bytes; the maximum is 26214400"), "got %+v, want a failed delivery", got)
	})
	d := newDeliveryQueue(nil)
	exact := &delivery{body: make([]byte, maxPayload)}
	over := &delivery{body: make([]byte, maxPayload+1)}
	d.enqueue(exact)
	d.enqueue(over)
	failIf(t, exact.State != "waiting" || over.State != "failed", "got %+v and %+v, want waiting and failed", exact.deliveryRecord, over.deliveryRecord)
}

// TestWaitingDeliveriesAreBounded checks the bounds on number and size. No goroutine
// sends the deliveries.
func TestWaitingDeliveriesAreBounded(t *testing.T) {
	for _, c := range []struct{ size, fit int }{{10, maxQueued}, {maxPayload, 4}, {maxPayload - 1, 4}, {maxPayload / 2, 8}} {
		d := newDeliveryQueue(nil)
		body := make([]byte, c.size)
		for i := range c.fit + 1 {
			item := &delivery{body: body}
			d.enqueue(item)
			stopIf(t, (item.State == "waiting") != (i < c.fit) || i == c.fit && item.Error != "not delivered: the queue is full", "delivery %d of %d bytes: got %+v", i+1, c.size, item.deliveryRecord)
		}
	}
}

func TestSentDeliveriesReleaseTheirBytes(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.startReceiver(webhookOn("acme"))
		t.createEvent(pushWidgets, 202)
		synctest.Wait()
		failIf(t, t.s.deliveries.queuedBytes != 0 || t.s.deliveries.recent[0].body != nil, "%d bytes are still counted as queued", t.s.deliveries.queuedBytes)
	})
}
