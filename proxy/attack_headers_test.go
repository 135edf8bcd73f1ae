package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
)

// Bytes that arrive on an idle connection must not become the response of the next request.
func TestUnsolicitedResponsesAreDiscarded(t *testing.T) {
	for name, more := range map[string]string{
		"second response": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
		"bytes":           "evil",
		"early hints":     "HTTP/1.1 103 Early Hints\r\nLink: </evil>\r\n\r\n",
		"request timeout": "HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\nConnection: close\r\n\r\nevil",
	} {
		bubble(t, name, func(t *testing.T) {
			l := testservers.ListenPipe("raw.test:80")
			defer func() { _ = l.Close() }()
			go func() {
				for n := 0; ; n++ {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer func() { _ = c.Close() }()
						_, _ = c.Read(make([]byte, 4<<10)) // one read returns the whole request
						_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d%s", n, more)
						_, _ = io.Copy(io.Discard, c)
					}()
				}
			}()
			w := newWorld(t, nothing, func(c *Config) {
				transport := NewTransport()
				transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
					return l.Dial(ctx, network, address)
				}
				t.Cleanup(transport.CloseIdleConnections)
				c.Transport = transport
			})
			for i := range 5 {
				w.want("body", w.get(fmt.Sprint("/users/", i)).body, fmt.Sprint(i))
				synctest.Wait() // the connection is idle
			}
		})
	}
}

// The Connection field removes fields of the client, but no fields that Weir adds (RFC 9110 section 7.6.1).
func TestConnectionDoesNotRemoveFieldsOfWeir(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		for i, fields := range [][]string{
			{"Connection: authorization, via, user-agent, accept-encoding, host, content-length"},
			{"Connection: Authorization", "Connection: Via, User-Agent"},
			{"connection: AUTHORIZATION,\tVia ,, User-Agent"},
			{"Connection: close, authorization, x-real-ip, X-Forwarded-For", "X-Real-Ip: 10.0.0.1"},
			{"Proxy-Connection: authorization", "Keep-Alive: authorization", "Te: authorization", "Upgrade: authorization"},
		} {
			w.get(fmt.Sprint("/users/", i), append(fields, "Authorization: Bearer a", "User-Agent: test/1")...)
			seen := w.seen.all()[i]
			w.want("credential", seen.Header.Get("Authorization"), "Bearer a")
			w.want("via", seen.Header.Get("Via"), w.gateway.via[0])
			w.want("host", seen.Host, "upstream.test")
			if agent := seen.Header.Get("User-Agent"); agent != "test/1" && agent != defaultAgent[0] {
				w.Errorf("User-Agent: %q", agent)
			}
			for _, name := range []string{"X-Real-Ip", "X-Forwarded-For", "Te", "Upgrade", "Connection", "Keep-Alive", "Proxy-Connection"} {
				w.want(name, seen.Header.Get(name), "")
			}
		}
	})
}

// aliases returns identity and routing fields that programs behind a gateway may trust, in several spellings.
func aliases() (fields []string) {
	for _, name := range []string{
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Uri", "X-Real-Ip", "X-Original-Url", "X-Rewrite-Url",
		"X-Host", "X-Auth-Request-User", "X-Webauth-User", "X-Remote-User", "X-Our-Client", "Remote-User", "Forwarded", "X-Http-Method-Override", "X-Method-Override", "Weir-Client",
	} {
		underscores, dots := strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, "-", ".")
		fields = append(fields, name+": evil", strings.ToLower(name)+": evil", underscores+": evil", strings.ToLower(underscores)+": evil", dots+": evil", strings.Replace(name, "-", "_", 1)+": evil")
	}
	return fields
}

// Known operations forward only listed fields. Unknown operations forward no alias of identity or routing fields.
func TestAliasesOfTrustedFieldsAreDropped(t *testing.T)     { sendAliases(t, "Bearer a") }
func TestAliasesAreDroppedForAnonymousClients(t *testing.T) { sendAliases(t, "") }

func sendAliases(t *testing.T, credential string) {
	t.Helper()
	setup(nothing).run(t, func(w *world) {
		for i, path := range []string{"/user/repos", "/gitignore/templates", "/made/up", "/user"} {
			fields := append(aliases(), "Remote_User: evil")
			if credential != "" {
				fields = append(fields, "Authorization: "+credential)
			}
			w.get(path, fields...)
			for name, values := range w.seen.all()[i].Header {
				if strings.Contains(strings.Join(values, ","), "evil") {
					w.Errorf("%s: %s was forwarded", path, name)
				}
			}
		}
	})
}

func TestUpstreamReceivesOnlyTheChosenCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				id, err := identifyByToken(r)
				id.Authorize = func(_ context.Context, h http.Header) error {
					h.Set("Authorization", "Bearer held")
					return nil
				}
				return id, err
			}
		})
		for i, path := range []string{"/user", "/made/up", "/repos/a/b/subscription"} {
			w.get(path, "Authorization: Bearer mine", "Cookie: session=1", "Proxy-Authorization: Basic eA==", "X-Service-Otp: 123456", "X-Github-Otp: 123456",
				"X-Http-Method-Override: DELETE", "X-Api-Key: mine", "Authentication: mine", "X-Access-Token: mine", "Set-Cookie: a=b")
			seen := w.seen.all()[i]
			w.want("credentials", fmt.Sprint(seen.Header["Authorization"]), "[Bearer held]")
			w.want("method", seen.Method, "GET")
			for _, name := range []string{"Cookie", "Proxy-Authorization", "X-Service-Otp", "X-Github-Otp", "X-Http-Method-Override", "X-Api-Key", "X-Access-Token"} {
				w.want(path+" "+name, seen.Header.Get(name), "")
			}
		}
	})
}

func TestSetCookieIsNotShared(t *testing.T) {
	for _, path := range []string{"/gitignore/templates", "/made/up"} {
		synctest.Test(t, func(t *testing.T) {
			w := newHTTP1World(t, func(w http.ResponseWriter, r *http.Request) { // HTTP/2 has no Connection field
				h := w.Header()
				h.Set("Cache-Control", "max-age=60")
				h.Set("Etag", `"one"`)
				h.Set("Set-Cookie", "session=of "+r.Header.Get("Authorization"))
				for _, name := range []string{"Proxy-Authenticate", "Alt-Svc", "Strict-Transport-Security", "X-Nominated"} {
					h.Set(name, "evil")
				}
				h.Set("Connection", "x-nominated")
			})
			w.get(path, "Authorization: Bearer a")
			for _, field := range []string{"Authorization: Bearer b", "Accept: */*"} {
				h := w.get(path, field).Header
				for _, name := range []string{"Proxy-Authenticate", "Alt-Svc", "Strict-Transport-Security", "X-Nominated"} {
					w.want(name, h.Get(name), "")
				}
				if strings.Contains(h.Get("Set-Cookie"), "Bearer a") {
					t.Errorf("%s, %s: the response has the cookie of another caller: %s", path, field, h)
				}
			}
		})
	}
}

// The Host of a client affects neither the upstream request nor the cache key. Only links in the response to this
// client use the Host.
func TestClientHostAffectsOnlyItsOwnLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "<"+upstreamURL+`/x?page=2>; rel="next"`)
			w.Header().Set("Cache-Control", "max-age=60")
		})
		for i, host := range []string{"evil.test", "GATEWAY.test", "xn--gateway-9ua.test", "gateway.test.", "gateway.test:80", "gateway.test"} {
			r := parseResponse(t, w.raw("GET /gitignore/templates HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"))
			w.want("status", r.StatusCode, 200)
			w.want("link", r.Header.Get("Link"), "<http://"+host+`/x?page=2>; rel="next"`)
			w.want("host upstream", w.seen.all()[0].Host, "upstream.test")
			w.want("hit", strings.Contains(r.Header.Get("Cache-Status"), "weir; hit"), i > 0)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}
