package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

const secret, oldSecret = "It's a Secret to Everybody", "the secret before"

// refusals are the reasons for refused deliveries.
var refusals refusalList

type refusalList struct {
	mu   sync.Mutex
	list []Refusal
}

func (l *refusalList) add(r Refusal, _ string, _ netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
}

// take returns the reasons since the last call.
func (l *refusalList) take() []Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

var configuration = Config{Dialect: testservers.Must(policy.LoadDialect("service")), Secrets: []credential.Secret{secret, oldSecret}, Refused: refusals.add}

func signed(body string) string { return signedWith(secret, body) }

func signedWith(secret, body string) string {
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(body))
	return "X-Hub-Signature-256: sha256=" + hex.EncodeToString(sum.Sum(nil))
}

// deliver sends a delivery to a receiver and returns the response.
func deliver(v *Receiver, method, body string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/_weir/webhooks", strings.NewReader(body))
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	v.Handler(configuration).ServeHTTP(w, r)
	return w
}

const push = `{"ref": "refs/heads/main", "repository": {"full_name": "Acme/Widgets"}, "organization": {"login": "acme"}}`

// oddPush has members of other types than documented.
const oddPush = `{"changes": [], "ref": 7, "hook": {"events": "*"}, "organization": "acme", "repository": {"full_name": "acme/widgets", "default_branch": null}}`

func pushTo(ref string) string {
	return `{"ref": "` + ref + `", "repository": {"full_name": "acme/widgets", "default_branch": "main"}}`
}

// The expected results follow the rules of Document B section 6.1.
func TestHandlerVerifiesDeliveries(t *testing.T) {
	event, id := "X-Service-Event: push", "X-Service-Delivery: 1"
	form := url.Values{"payload": {push}}.Encode()
	event1 := []Event{{Name: "push", Delivery: "1", Repository: "acme/widgets", Organization: "acme"}}
	otherBranch := []Event{{Name: "push", Delivery: "1", Repository: "acme/widgets", Organization: "acme", OtherBranch: true}}
	for _, c := range []struct {
		name, method, body string
		fields             []string
		status             int
		text               string // part of the response
		want               []Event
	}{
		{"JSON", "POST", push, []string{event, id, signed(push), "Content-Type: application/json"}, 202, "", event1},
		{"a form", "POST", form, []string{event, id, signed(form), "Content-Type: application/x-www-form-urlencoded; charset=utf-8"}, 202, "", event1},
		{"no repository", "POST", `{"organization": {"login": "Acme"}}`, []string{event, id, signed(`{"organization": {"login": "Acme"}}`)}, 202, "", []Event{{Name: "push", Delivery: "1", Repository: "", Organization: "acme"}}},
		{"neither repository nor organization", "POST", `{}`, []string{event, id, signed(`{}`)}, 202, "", []Event{{Name: "push", Delivery: "1", Repository: "", Organization: ""}}},
		{"an installation", "POST", `{"installation": {"id": 42}}`, []string{event, id, signed(`{"installation": {"id": 42}}`)}, 202, "", []Event{{Name: "push", Delivery: "1", App: true, Installation: 42}}},
		{"members of other types", "POST", oddPush, []string{event, id, signed(oddPush)}, 202, "", event1},
		{"a list", "POST", "[" + push + "]", []string{event, id, signed("[" + push + "]")}, 400, "not a JSON object", nil},
		{"an invalid repository name", "POST", `{"repository": {"full_name": "a/b/c"}}`, []string{event, id, signed(`{"repository": {"full_name": "a/b/c"}}`)}, 202, "", []Event{{Name: "push", Delivery: "1", Repository: "", Organization: ""}}},
		{"a push to the default branch", "POST", pushTo("refs/heads/main"), []string{event, id, signed(pushTo("refs/heads/main"))}, 202, "", event1},
		{"a push to another branch", "POST", pushTo("refs/heads/side"), []string{event, id, signed(pushTo("refs/heads/side"))}, 202, "", otherBranch},
		{"a push of a tag", "POST", pushTo("refs/tags/main"), []string{event, id, signed(pushTo("refs/tags/main"))}, 202, "", otherBranch},
		{"another accepted secret", "POST", push, []string{event, id, signedWith(oldSecret, push)}, 202, "", event1},
		{"an unknown secret", "POST", push, []string{event, id, signedWith("guessed", push)}, 401, "mismatch", nil},
		{"no signature", "POST", push, []string{event, id}, 401, "exactly once", nil},
		{"a SHA-1 signature only", "POST", push, []string{event, id, "X-Hub-Signature: sha1=00"}, 401, "SHA-1 signature is not sufficient", nil},
		{"a signature of another body", "POST", push + " ", []string{event, id, signed(push)}, 401, "mismatch", nil},
		{"two signatures", "POST", push, []string{event, id, signed(push), signed(push)}, 401, "exactly once", nil},
		{"a signature without its algorithm", "POST", push, []string{event, id, strings.Replace(signed(push), "sha256=", "", 1)}, 401, "mismatch", nil},
		{"a signature that is not hexadecimal", "POST", push, []string{event, id, "X-Hub-Signature-256: sha256=xyz"}, 401, "mismatch", nil},
		{"no event", "POST", push, []string{id, signed(push)}, 400, "X-Service-Event", nil},
		{"no delivery identifier", "POST", push, []string{event, signed(push)}, 400, "X-Service-Delivery", nil},
		{"invalid JSON", "POST", "push", []string{event, id, signed("push")}, 400, "not a JSON object", nil},
		{"a form without a payload", "POST", "a=b", []string{event, id, signed("a=b"), "Content-Type: application/x-www-form-urlencoded"}, 400, "not a JSON object", nil},
		{"a GET", "GET", "", nil, 405, "POST", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var events []Event
			refusals.take() // of other tests
			w := deliver(NewReceiver(func(e Event) { events = append(events, e) }), c.method, c.body, c.fields...)
			failIf(t, w.Code != c.status || !strings.Contains(w.Body.String(), c.text), "got %d, %q, want %d with %q", w.Code, w.Body, c.status, c.text)
			testservers.Equal(t, "events", events, c.want)
			reason := map[int][]Refusal{400: {RefusedHeader}, 401: {RefusedSignature}, 405: {RefusedMethod}}[c.status]
			if c.status == http.StatusBadRequest && strings.Contains(c.text, "JSON") {
				reason = []Refusal{RefusedPayload}
			}
			testservers.Equal(t, "reasons", refusals.take(), reason)
		})
	}
}

// TestDeliveryShowsEventsOfItsWebhook checks what a delivery shows about the webhook that sent it.
func TestDeliveryShowsEventsOfItsWebhook(t *testing.T) {
	const repository, organization = `"repository": {"full_name": "Acme/Widgets"}`, `"organization": {"login": "Acme"}`
	for _, c := range []struct {
		name, event, target, body string
		want                      cache.Coverage
	}{
		{"event of a repository", "issues", "repository", "{" + repository + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Events: []string{"issues"}}},
		{"event of a repository, with an unsigned claim of an organization", "issues", "organization", "{" + repository + "," + organization + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Events: []string{"issues"}}},
		{"ping of a repository, with an unsigned claim of an organization", "ping", "organization", `{"hook": {"events": ["*"]}, ` + organization + "}", cache.Coverage{}},
		{"event of an organization to an app, without the unsigned field", "team", "", `{"installation": {"id": 1}, ` + organization + "}", cache.Coverage{}},
		{"event of an organization", "team", "organization", "{" + organization + "}", cache.Coverage{Webhook: "org:acme", Object: "org:acme", Events: []string{"team"}}},
		{"event by an app", "issues", "integration", "{" + repository + "," + organization + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Events: []string{"issues"}}},
		{"event of an organization by an app", "team", "integration", "{" + organization + "}", cache.Coverage{}},
		{"event without an object", "user", "", "{}", cache.Coverage{}},
		{"ping", "ping", "repository", `{"hook": {"type": "Repository", "active": true, "events": ["issues", "label"]}, ` + repository + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Events: []string{"issues", "label"}, Complete: true}},
		{"ping of an organization", "ping", "organization", `{"hook": {"type": "Organization", "events": ["*"]}, ` + organization + "}", cache.Coverage{Webhook: "org:acme", Object: "org:acme", Events: []string{"*"}, Complete: true}},
		{"ping of another type than its header", "ping", "organization", `{"hook": {"type": "Repository", "events": ["*"]}, ` + repository + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Events: []string{"*"}, Complete: true}},
		{"deleted webhook", "meta", "repository", `{"hook": {"type": "Repository", "events": ["*"]}, ` + repository + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Complete: true}},
		{"deleted webhook of an organization", "meta", "organization", `{"hook": {"type": "Organization", "events": ["*"]}, ` + organization + "}", cache.Coverage{Webhook: "org:acme", Object: "org:acme", Complete: true}},
		{"ping of an inactive webhook", "ping", "repository", `{"hook": {"type": "Repository", "active": false, "events": ["*"]}, ` + repository + "}", cache.Coverage{}},
		{"ping without a list", "ping", "repository", "{" + repository + "}", cache.Coverage{}},
		{"list of another event", "push", "repository", `{"hook": {"events": ["*"]}, ` + repository + "}", cache.Coverage{Webhook: "repo:acme/widgets", Object: "repo:acme/widgets", Events: []string{"push"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got cache.Coverage
			report := func(e Event) {
				if v, ok := e.Coverage(); ok {
					got = v
				}
			}
			deliver(NewReceiver(report), http.MethodPost, c.body, "X-Service-Event: "+c.event, "X-Service-Delivery: 1",
				"X-Service-Hook-Installation-Target-Type: "+c.target, signed(c.body))
			age := time.Since(got.At)
			failIf(t, got.Object != "" && age > time.Minute, "the delivery is %v old", age)
			got.At = time.Time{}
			testservers.Equal(t, "coverage", got, c.want)
		})
	}
}

func TestDeliveryIsReportedOnce(t *testing.T) {
	reports := 0
	v := NewReceiver(func(Event) { reports++ })
	for _, id := range []string{"a", "b", "a", "a"} {
		w := deliver(v, http.MethodPost, push, "X-Service-Event: push", "X-Service-Delivery: "+id, signed(push))
		failIf(t, w.Code != http.StatusAccepted, "delivery %s: got %d, want 202", id, w.Code)
	}
	failIf(t, reports != 2, "%d reports, want 2", reports)
	for i := range maxRemembered { // the identifiers above are evicted
		v.seen.Add(fmt.Sprint(i), struct{}{})
	}
	failIf(t, v.seen.Len() != maxRemembered, "%d identifiers are remembered, want %d", v.seen.Len(), maxRemembered)
	failIf(t, v.seen.Contains("a"), "an evicted identifier is still known")
}

// The signature does not cover the headers, so a replayed body must not count for another event.
func TestReplayedBodyKeepsItsEvent(t *testing.T) {
	var names []string
	v := NewReceiver(func(e Event) { names = append(names, e.Name) })
	for i, c := range []struct {
		event, body string
		status      int
	}{{"push", push, http.StatusAccepted}, {"team", push, http.StatusConflict}, {"ping", push, http.StatusConflict}, {"push", push, http.StatusAccepted}, {"team", push + " ", http.StatusAccepted}} {
		w := deliver(v, http.MethodPost, c.body, "X-Service-Event: "+c.event, fmt.Sprintf("X-Service-Delivery: %d", i), signed(c.body))
		failIf(t, w.Code != c.status, "delivery %d: got %d, want %d", i, w.Code, c.status)
	}
	testservers.Equal(t, "events", names, []string{"push", "push", "team"})
}

// A repeated body shows nothing about its webhook, whatever its identifier and the replica that gets it.
func TestReplaysShowNothing(t *testing.T) {
	shared := map[string]bool{}
	once := func(_ context.Context, name string, end time.Time) (bool, error) {
		first := !shared[name] && time.Until(end) > 24*time.Hour
		shared[name] = true
		return first, nil
	}
	lost := func(context.Context, string, time.Time) (bool, error) { return true, errors.New("the store is lost") }
	var covered int
	replica := func(once func(context.Context, string, time.Time) (bool, error)) *Receiver {
		v := NewReceiver(func(e Event) {
			if _, ok := e.Coverage(); ok {
				covered++
			}
		})
		v.Once = once
		return v
	}
	replicas := []*Receiver{replica(once), replica(once), replica(lost)}
	for i, c := range []struct{ replica, want int }{{0, 1}, {0, 1}, {1, 1}, {2, 1}} {
		deliver(replicas[c.replica], http.MethodPost, push, "X-Service-Event: push", fmt.Sprintf("X-Service-Delivery: %d", i), signed(push))
		testservers.Equal(t, "deliveries that show a webhook", covered, c.want)
	}
}

func TestDeliverySizeIsBounded(t *testing.T) {
	large := strings.Repeat(" ", maxPayload-2) + "{}"
	fields := []string{"X-Service-Event: push", "X-Service-Delivery: 1"}
	v := NewReceiver(func(Event) {})
	if w := deliver(v, http.MethodPost, large, append(fields, signed(large))...); w.Code != http.StatusAccepted {
		t.Errorf("delivery of the maximum size: got %d, want 202", w.Code)
	}
	large += " "
	w := deliver(v, http.MethodPost, large, append(fields, signed(large))...)
	failIf(t, w.Code != http.StatusRequestEntityTooLarge, "larger delivery: got %d, want 413", w.Code)
}

// stall opens connections from one address that send a part of a delivery every second, and returns the time at which
// each connection was closed.
func stall(t *testing.T, l *testservers.PipeListener, connections int, part string) (closed func() []time.Duration) {
	began := time.Now()
	var ends []time.Duration
	var senders sync.WaitGroup
	var mu sync.Mutex
	for range connections {
		c := testservers.Must(l.Dial(t.Context(), "", ""))
		senders.Go(func() {
			senders.Go(func() {
				_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: hook.test\r\nContent-Length: 20000000\r\n\r\n")
				for err == nil {
					time.Sleep(time.Second)
					_, err = io.WriteString(c, part)
				}
			})
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Since(began))
		})
	}
	return func() []time.Duration {
		senders.Wait()
		return ends
	}
}

// post sends an unsigned delivery and returns the status and the duration.
func post(t *testing.T, l *testservers.PipeListener) (int, time.Duration) {
	t.Helper()
	began := time.Now()
	client := http.Client{Transport: &http.Transport{DialContext: l.Dial, DisableKeepAlives: true}}
	r := testservers.Must(client.Post("http://hook.test/", "application/json", strings.NewReader("{}")))
	_ = r.Body.Close()
	return r.StatusCode, time.Since(began)
}

func TestSlowDeliveriesEndAndDoNotDelayOtherDeliveries(t *testing.T) {
	for name, part := range map[string]string{"nothing": "", "2 KiB per second": strings.Repeat(" ", 2<<10)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := NewReceiver(func(Event) {})
				l := testservers.ServePipe(t, "hook.test:80", &http.Server{Handler: v.Handler(configuration)})
				closed := stall(t, l, 100, part)
				time.Sleep(time.Second)
				status, took := post(t, l)
				failIf(t, status != http.StatusUnauthorized || took > time.Second, "another delivery got %d after %v, want 401 within a second", status, took)
				for _, end := range closed() {
					testservers.StopIf(t, end > readTimeout+time.Second, "a slow delivery ended after %v", end)
				}
				synctest.Wait()
				failIf(t, v.memory.total != 0 || len(v.memory.perAddress) != 0, "%d bytes of %d addresses are reserved after the end of all deliveries", v.memory.total, len(v.memory.perAddress))
			})
		})
	}
}

// addressListener gives each connection another client address.
type addressListener struct {
	net.Listener
	address *atomic.Int32
}

type addressConn struct {
	net.Conn
	address testservers.PipeAddress
}

func (l addressListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return addressConn{c, testservers.PipeAddress(fmt.Sprintf("192.0.2.%d:1000", l.address.Load()))}, nil
}

func (c addressConn) RemoteAddr() net.Addr { return c.address }

func TestMemoryOfDeliveriesIsBoundedPerAddressAndInTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewReceiver(func(Event) {})
		pipe := testservers.ListenPipe("hook.test:80")
		l := addressListener{pipe, &atomic.Int32{}}
		server := &http.Server{Handler: v.Handler(configuration)}
		go func() { _ = server.Serve(l) }()
		defer func() { _ = server.Close() }()
		var waits []func() []time.Duration
		for range maxMemory / maxMemoryPerAddress {
			l.address.Add(1)
			if status, _ := post(t, pipe); status != http.StatusUnauthorized {
				t.Errorf("first delivery of an address: got %d, want 401", status)
			}
			waits = append(waits, stall(t, pipe, maxMemoryPerAddress/blockSize, ""))
			synctest.Wait()
			status, _ := post(t, pipe)
			failIf(t, status != http.StatusServiceUnavailable, "delivery of an address without memory: got %d, want 503", status)
		}
		l.address.Add(1)
		if status, _ := post(t, pipe); status != http.StatusServiceUnavailable {
			t.Errorf("delivery of another address without memory: got %d, want 503", status)
		}
		for _, wait := range waits {
			wait()
		}
		status, _ := post(t, pipe)
		failIf(t, status != http.StatusUnauthorized, "after the end of the slow deliveries: got %d, want 401", status)
	})
}

// FuzzSignature checks that verify accepts exactly one valid signature of the body and no other signature.
func FuzzSignature(f *testing.F) {
	sum := func(body []byte) []byte {
		mac := hmac.New(sha256.New, []byte(secret))
		_, _ = mac.Write(body)
		return mac.Sum(nil)
	}
	good := "sha256=" + hex.EncodeToString(sum([]byte(push)))
	for _, seed := range []string{good, strings.ToUpper(good), good + ",", " " + good, good[:70], "sha1=" + good[7:], "sha256=", "", good + "\n" + good, "sha256=" + strings.Repeat("0", 64)} {
		f.Add(seed, "", []byte(push))
	}
	f.Add(good, good, []byte(push))
	f.Add(good, "", []byte(push+" "))
	f.Fuzz(func(t *testing.T, signature, another string, body []byte) {
		h := http.Header{"X-Hub-Signature-256": {signature}}
		if another != "" {
			h.Add("X-Hub-Signature-256", another)
		}
		want := another == "" && strings.HasPrefix(signature, "sha256=") && strings.EqualFold(signature[7:], hex.EncodeToString(sum(body)))
		signer := signers([]credential.Secret{oldSecret, secret})
		_, _ = signer.Write(body)
		_, err := signer.verify(h)
		failIf(t, (err == nil) != want, "signatures %q and %q: %v, want valid %v", signature, another, err, want)
	})
}

func FuzzParse(f *testing.F) {
	f.Add("application/json", []byte(push))
	f.Add("application/x-www-form-urlencoded", []byte("payload=%7B%7D"))
	f.Add("", []byte(`{"repository": null}`))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		var e Event
		if e.parse(contentType, bytes.Clone(body)) != nil {
			return
		}
		owner, name, ok := strings.Cut(e.Repository, "/")
		failIf(t, e.Repository != "" && (!ok || owner == "" || name == "" || strings.Contains(name, "/") || owner != e.Organization), "%q of %q", e.Repository, e.Organization)
	})
}
