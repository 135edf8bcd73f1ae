package credential

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
)

// TestNoAnswerWithATokenIsQuoted: errors of net/http quote what they cannot read, which
// may be where a token is.
func TestNoAnswerWithATokenIsQuoted(t *testing.T) {
	at, err := url.Parse("http://api.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []string{
		"HTTP/1.1 2x1 ghs_secret\r\n\r\n",
		"HTTP/1.1 201 Created\r\n{\"token\":\"ghs_secret\"}\r\n\r\n",
		"{\"token\":\"ghs_secret\"}\r\n\r\n",
		"HTTP/1.1 201 Created\r\nContent-Length: 22\r\n\r\n{\"token\":\"ghs_secret\"}",
		"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{\"token\":\"ghs_secret\"}",
	} {
		r := newAppRig(t)
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
					_, _ = io.WriteString(far, answer)
				}
				_ = far.Close()
			}()
			return near, nil
		}}
		m := r.mint(nil)
		_, err := m.Source("bot", &r.app, &TokenEndpoint{Upstream: at, Transport: transport}).Token(t.Context())
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(r.log.String(), "secret") {
			t.Errorf("%q: %v; %s", answer, err, r.log.String())
		}
		transport.CloseIdleConnections()
	}
}

// TestATokenIsOfOneAPI: the installation of a number at another API is another's.
func TestATokenIsOfOneAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAppRig(t)
		one, other := r.app, r.app
		one.Upstream, other.Upstream = "https://api.test", "https://api.example"
		m := r.mint(nil)
		var tokens []Secret
		for _, a := range []App{one, other, one} {
			at, err := url.Parse(a.Upstream)
			if err != nil {
				t.Fatal(err)
			}
			s := m.Source("bot", &a, &TokenEndpoint{Upstream: at, Transport: r.up})
			token, err := s.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, token)
		}
		if tokens[0].Equal(tokens[1]) || !tokens[0].Equal(tokens[2]) {
			t.Error("two share a token, or one has two")
		}
	})
}
