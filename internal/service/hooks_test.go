package service

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
)

const hookSecret = "It's a Secret to Everybody"

// webhookOn returns a webhook on a target that subscribes to all events.
func webhookOn(target string) Webhook {
	return Webhook{URL: "http://receiver.test/hook?a=b", Secret: hookSecret, Events: []string{"*"}, Target: target}
}

// receivedDelivery is one HTTP request that the receiver got.
type receivedDelivery struct {
	method, target string
	length         int64
	header         http.Header
	body           []byte
}

// inbox stores the deliveries of one receiver.
type inbox struct {
	mu  sync.Mutex
	got []receivedDelivery
}

// startReceiver registers webhooks, and starts a receiver for all deliveries of the service. It answers with 202.
func (t *tester) startReceiver(webhooks ...Webhook) *inbox {
	t.Helper()
	return t.startReceiverWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, webhooks...)
}

// startReceiverWith starts a receiver that answers with a handler.
func (t *tester) startReceiverWith(answer http.HandlerFunc, webhooks ...Webhook) *inbox {
	t.Helper()
	t.setWebhooks(webhooks...)
	box := &inbox{}
	l := testservers.ServePipe(t, "receiver.test:80", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		failIf(t, err != nil, "%v", err)
		box.mu.Lock()
		box.got = append(box.got, receivedDelivery{r.Method, r.RequestURI, r.ContentLength, r.Header, body})
		box.mu.Unlock()
		answer(w, r)
	})})
	t.s.deliveries.transport.DialContext = l.Dial
	return box
}

// take waits until the service is idle, and returns and removes the received deliveries.
func (b *inbox) take() []receivedDelivery {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.got
	b.got = nil
	return got
}

// takePayload returns and removes the payload of the only received delivery.
func (b *inbox) takePayload(t *tester) jsonObject {
	t.Helper()
	got := b.take()
	stopIf(t, len(got) != 1, "got %d deliveries, want 1", len(got))
	return decode[jsonObject](t, &httptest.ResponseRecorder{Body: bytes.NewBuffer(got[0].body)})
}

func (t *tester) setWebhooks(all ...Webhook) {
	t.Helper()
	testservers.NoError(t, t.s.SetWebhooks(all))
}

// createEvent posts an event and returns the response.
func (t *tester) createEvent(body string, status int) jsonObject {
	t.Helper()
	return decode[jsonObject](t, t.call("", "POST /_service/events "+body, status, ""))
}

// wantRefused posts an invalid event and checks the start or the end of the error message.
func (t *tester) wantRefused(body, wantMessage string) {
	t.Helper()
	got := t.createEvent(body, 400)
	failIf(t, !strings.HasPrefix(got["message"].(string), wantMessage) && !strings.HasSuffix(got["message"].(string), wantMessage), "%s: got %q, want %q", body, got["message"], wantMessage)
}

// hmacHex returns the hexadecimal HMAC of a body. It implements RFC 2104 itself, so that it shares no code with the
// service.
func hmacHex(by func() hash.Hash, secret string, body []byte) string {
	key := make([]byte, by().BlockSize())
	copy(key, secret)
	inner, outer := by(), by()
	for _, b := range key {
		inner.Write([]byte{b ^ 0x36})
		outer.Write([]byte{b ^ 0x5c})
	}
	inner.Write(body)
	outer.Write(inner.Sum(nil))
	return hex.EncodeToString(outer.Sum(nil))
}

// TestDeliveriesHaveTheDocumentedHeaders covers Document B section 6.1.
func TestDeliveriesHaveTheDocumentedHeaders(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"), webhookOn("acme"), webhookOn("app"))
		answer := t.createEvent(pushWidgets, 202)
		guids := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
		seen := map[string]bool{}
		for i, d := range box.take() {
			kind, id := []string{"repository", "organization", "integration"}[i], []string{"1001", "4", "9001"}[i]
			delivery := d.header.Get("X-Service-Delivery")
			failIf(t, seen[delivery] || !guids.MatchString(delivery) || answer["deliveries"].([]any)[i] != delivery, "got delivery %q, the response lists %v", delivery, answer)
			seen[delivery] = true
			for name, want := range map[string]string{
				"X-Service-Hook-ID": fmt.Sprint(i + 1), "X-Service-Event": "push", "User-Agent": "Service-Hookshot/1",
				"X-Service-Hook-Installation-Target-Type": kind, "X-Service-Hook-Installation-Target-ID": id, "Content-Type": "application/json",
				"X-Hub-Signature": "sha1=" + hmacHex(sha1.New, hookSecret, d.body), "X-Hub-Signature-256": "sha256=" + hmacHex(sha256.New, hookSecret, d.body),
			} {
				got := d.header.Values(name)
				failIf(t, len(got) != 1 || got[0] != want, "%s: got %q, want %q", name, got, want)
			}
			failIf(t, d.method != http.MethodPost || d.target != "/hook?a=b" || d.length != int64(len(d.body)), "got %s %s with %d of %d bytes", d.method, d.target, len(d.body), d.length)
		}
	})
}

// TestSignaturesMatchPublishedExamples checks the service with a published example, and
// hmacHex with the standard library.
func TestSignaturesMatchPublishedExamples(t *testing.T) {
	k := &hook{Webhook: Webhook{Secret: hookSecret}}
	testservers.Equal(t, "service", k.sign(sha256.New, []byte("Hello, World!")), "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	testservers.Equal(t, "test", hmacHex(sha1.New, hookSecret, nil), hex.EncodeToString(hmac.New(sha1.New, []byte(hookSecret)).Sum(nil)))
}

// TestWebhooksChooseSignatureAndContentType compares a webhook without a secret and a webhook of forms with an ordinary one.
func TestWebhooksChooseSignatureAndContentType(t *testing.T) {
	runWithService(t, func(t *tester) {
		unsigned, form := webhookOn("acme"), webhookOn("acme")
		unsigned.Secret, form.ContentType = "", "form"
		box := t.startReceiver(webhookOn("acme"), unsigned, form)
		t.createEvent(pushWidgets, 202)
		got := box.take()
		stopIf(t, len(got) != 3 || len(got[1].header["X-Hub-Signature"])+len(got[1].header["X-Hub-Signature-256"]) > 0, "got deliveries %v, want an unsigned one", got)
		h, body := got[2].header, got[2].body
		t.wantEqual("signature", "sha256="+hmacHex(sha256.New, hookSecret, body), h.Get("X-Hub-Signature-256"))
		t.wantEqual("content type", "application/x-www-form-urlencoded", h.Get("Content-Type"))
		values, err := url.ParseQuery(string(body))
		failIf(t, err != nil || len(values) != 1 || values.Get("payload") != string(got[0].body), "got error %v and body %s", err, body)
	})
}

func TestDialectNamesTheHeadersOfDeliveries(t *testing.T) {
	runWithService(t, func(t *tester) {
		t = t.newService("github", 1)
		box := t.startReceiver(webhookOn("acme"))
		t.createEvent(pushWidgets, 202)
		h := box.take()[0].header
		for _, name := range strings.Fields(`X-GitHub-Hook-ID X-GitHub-Event X-GitHub-Delivery X-GitHub-Hook-Installation-Target-Type
			X-GitHub-Hook-Installation-Target-ID X-Hub-Signature-256`) {
			failIf(t, h.Get(name) == "", "the header %s is missing", name)
		}
		failIf(t, !strings.HasPrefix(h.Get("User-Agent"), "GitHub-Hookshot/"), "got User-Agent %s", h.Get("User-Agent"))
	})
}

// TestWebhookResponsesOmitSecrets checks the responses to a valid and to an invalid list.
func TestWebhookResponsesOmitSecrets(t *testing.T) {
	const body = `[{"url": "https://receiver.test/a", "secret": "hunter2", "content_type": "form", "events": ["push", "release"], "target": "ACME/Widgets"},
		{"url": "http://receiver.test:8080", "events": ["*"], "target": "app"}, {"url": "http://receiver.test", "events": ["team"], "target": "acme", "secret": "hunter2"}]`
	want := `=[{"id":1,"url":"https://receiver.test/a","content_type":"form","events":["push","release"],"target":"acme/widgets","signed":true},` +
		`{"id":2,"url":"http://receiver.test:8080","content_type":"json","events":["*"],"target":"app","signed":false},` +
		`{"id":3,"url":"http://receiver.test","content_type":"json","events":["projects_v2"],"target":"acme","signed":true}]`
	runCalls(t, []call{
		{"", "PUT /_service/webhooks " + body, 400, "!hunter2"},
		{"", "GET /_service/webhooks", 200, "=[]"}, // the refused list is not stored
		{"", "PUT /_service/webhooks " + strings.Replace(body, "team", "projects_v2", 1), 200, want},
		{"", "GET /_service/webhooks", 200, want},
		{"", `PUT /_service/webhooks [{"url": "http://receiver.test", "events": ["*"], "target": "acme"}]`, 200, `[{"id":4}]`},
	})
}

func TestSetWebhooksRefusesInvalidLists(t *testing.T) {
	runWithService(t, func(t *tester) {
		with := func(from, to string) string {
			return `[{"url": "http://a.test", "events": ["*"], "target": "acme"}, ` + strings.Replace(`{"url": "http://receiver.test", "content_type": "json", "events": ["push"], "target": "acme/widgets"}]`, from, to, 1)
		}
		for _, c := range []struct{ body, wantMessage string }{
			{`{`, `unexpected EOF`},
			{`{"url": "http://receiver.test"}`, `the body: must be an array, not object`},
			{with(`"url"`, `"uri"`), `webhooks[1].uri: unknown member`},
			{with(`"http://receiver.test"`, `3`), `webhooks[1].url: must be a string, not number`},
			{with(`http://receiver.test`, ``), `webhooks[1].url: must be http://HOST/PATH or https://HOST/PATH`},
			{with(`http://receiver.test`, `receiver.test/hook`), `webhooks[1].url: must be http://HOST`},
			{with(`http://receiver.test`, `ftp://receiver.test`), `webhooks[1].url: must be http://HOST`},
			{with(`http://receiver.test`, `http://`), `webhooks[1].url: must be http://HOST`},
			{with(`http://receiver.test`, `http://a:b@receiver.test`), `webhooks[1].url: must not contain credentials`},
			{with(`"json"`, `"xml"`), `webhooks[1].content_type: "xml": must be json or form`},
			{with(`acme/widgets`, `acme/none`), `webhooks[1].target: "acme/none": must be a repository (owner/name), an organization or app`},
			{with(`acme/widgets`, `acme-owner`), `webhooks[1].target: "acme-owner": must be`},
			{with(`"acme/widgets"`, `""`), `webhooks[1].target: "": must be`},
			{with(`["push"]`, `[]`), `webhooks[1].events: must name at least one event, or be ["*"]`},
			{with(`["push"]`, `["push", "*"]`), `webhooks[1].events[1]: "*" must be the only element`},
			{with(`["push"]`, `["push", "team"]`), `webhooks[1].events[1]: "team": must be one of branch_protection_configuration, `},
			{with(`["push"]`, `["custom_property"]`), `webhooks[1].events[0]: custom_property is not available to webhooks of kind repository; available to organization, app`},
			{strings.Replace(with(`["push"]`, `["push", "projects_v2"]`), `acme/widgets`, `app`, 1), `webhooks[1].events[1]: projects_v2 is not available to webhooks of kind app; available to organization`},
		} {
			w := t.call("", "PUT /_service/webhooks "+c.body, 400, "")
			got := decode[problemBody](t, w).Message
			failIf(t, !strings.Contains(got, c.wantMessage), "%s: got %q, want %q", c.body, got, c.wantMessage)
		}
		failIf(t, len(t.s.hooks) > 0, "a refused webhook was stored")
	})
}
