package credential

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// net/http quotes malformed responses in its errors, and such a response may contain a token.
func TestErrorsQuoteNoTokenOfAResponse(t *testing.T) {
	for _, response := range []string{
		"HTTP/1.1 2x1 ghs_secret\r\n\r\n",
		"HTTP/1.1 201 Created\r\n{\"token\":\"ghs_secret\"}\r\n\r\n",
		"{\"token\":\"ghs_secret\"}\r\n\r\n",
		"HTTP/1.1 201 Created\r\nContent-Length: 22\r\n\r\n{\"token\":\"ghs_secret\"}",
		"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{\"token\":\"ghs_secret\"}",
	} {
		r := newAppTest(t)
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
					_, _ = io.WriteString(far, response)
				}
				_ = far.Close()
			}()
			return near, nil
		}}
		_, err := r.app.issue(t.Context(), transport)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", response, err)
		}
		transport.CloseIdleConnections()
	}
}

// Two APIs may have installations with the same number.
func TestAppsOfDifferentUpstreamsShareNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAppTest(t)
		one, other := r.app, r.app
		one.Upstream, other.Upstream = apiURL(t, "https://api.test"), apiURL(t, "https://api.example")
		m := r.cache(nil)
		var tokens []Secret
		for _, a := range []App{one, other, one} {
			token, err := m.Source("bot", &a).get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, token)
		}
		if tokens[0].Equal(tokens[1]) || !tokens[0].Equal(tokens[2]) {
			t.Error("two upstreams share a token, or one upstream has two")
		}
	})
}
