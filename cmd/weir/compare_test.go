package main

import (
	"cmp"
	"encoding/base64"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// client sends the same calls to the service and to the gateway. It repeats a call while the
// response is 202.
type client struct {
	http http.Client
	base string
}

// answer is the part of a response that the test compares.
type answer struct {
	Status int
	Body   string
	Header map[string]string
}

// do sends a call of an operation with the parameters filled in. It repeats the call while the
// response is 202.
func (c *client) do(t *testing.T, op *policy.Operation, call call, named *strings.Replacer) answer {
	t.Helper()
	method, target := cmp.Or(call.method, op.Method), named.Replace(cmp.Or(call.target, op.Path))
	for {
		req, err := http.NewRequest(method, c.base+target, strings.NewReader(named.Replace(call.body)))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(call.as, ":"):
			req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(call.as)))
		case call.as != "":
			req.Header.Set("Authorization", "token "+call.as)
		}
		for name, value := range call.header {
			req.Header.Set(name, value)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			return c.answer(resp, string(body))
		}
		time.Sleep(2 * time.Second)
	}
}

// counts matches the numbers that a cache may change.
var counts = regexp.MustCompile(`"(used|remaining|reset)":\d+`)

func (c *client) answer(resp *http.Response, body string) answer {
	a := answer{Status: resp.StatusCode, Body: counts.ReplaceAllString(body, `"$1":0`), Header: map[string]string{}}
	for _, name := range []string{"Content-Type", "Etag", "Last-Modified", "Link", "Location", "X-Service-Media-Type", "X-Ratelimit-Limit", "X-Ratelimit-Resource"} {
		if v := resp.Header.Get(name); v != "" {
			a.Header[name] = strings.ReplaceAll(v, c.base, "BASE")
		}
	}
	return a
}

// allowDifferences removes fields that the gateway computes itself.
func allowDifferences(id string, want, got *answer) {
	switch {
	case got.Status == http.StatusUnauthorized || got.Status == http.StatusBadRequest:
		// The service sends no budget to an unknown caller.
		delete(want.Header, "X-Ratelimit-Limit")
		delete(got.Header, "X-Ratelimit-Limit")
		delete(want.Header, "X-Ratelimit-Resource")
		delete(got.Header, "X-Ratelimit-Resource")
	case id == "rate-limit/get": // the gateway writes this response itself
		delete(want.Header, "X-Service-Media-Type")
		delete(want.Header, "Etag")
		delete(got.Header, "Etag")
	}
	if got.Status >= 400 {
		delete(want.Header, "X-Service-Media-Type")
		delete(got.Header, "X-Service-Media-Type")
	}
}

// startPair returns a client of a service, and a client of a gateway in front of an identical
// service.
func startPair(t *testing.T) (direct, through *client) {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL = "http://service.test"
	cfg.Limits.Primary.Unauthenticated = 1000 // the gateway receives every call twice as often
	start := func() *testservers.PipeListener {
		s, err := newService(cfg, 1, service.Faults{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return testservers.ServePipe(t, "service.test:80", &http.Server{Handler: s})
	}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	g.transport.DialContext = start().Dial
	listener := testservers.ServePipe(t, "gateway.test:80", &http.Server{Handler: g})
	connect := func(base string, l *testservers.PipeListener) *client {
		transport := &http.Transport{DialContext: l.Dial}
		t.Cleanup(transport.CloseIdleConnections)
		return &client{http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}, base}
	}
	return connect("http://service.test", start()), connect("http://gateway.test", listener)
}
