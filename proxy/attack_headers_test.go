package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/wire"
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
				transport := wire.NewTransport()
				transport.DialContext = l.Dial
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
			w.want("via", seen.Header.Get("Via"), "1.1 "+w.gateway.screen.Name)
			w.want("host", seen.Host, "upstream.test")
			agent := seen.Header.Get("User-Agent")
			failIf(w, agent != "test/1" && agent != "weir", "User-Agent: %q", agent)
			w.wantFields("forwarded", seen.Header, "X-Real-Ip: ", "X-Forwarded-For: ", "Te: ", "Upgrade: ", "Connection: ", "Keep-Alive: ", "Proxy-Connection: ")
		}
	})
}

// aliases returns identity and routing fields that programs behind a gateway may trust, in several spellings.
func aliases() (fields []string) {
	for _, name := range strings.Fields(`
		X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Forwarded-Scheme X-Forwarded-User X-Forwarded-Email X-Forwarded-Uri X-Real-Ip
		X-Original-Url X-Rewrite-Url X-Host X-Auth-Request-User X-Webauth-User X-Remote-User Remote-User Forwarded
		X-Http-Method-Override X-Method-Override Weir-Client
	`) {
		underscores, dots := strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, "-", ".")
		for _, spelling := range []string{name, strings.ToLower(name), underscores, strings.ToLower(underscores), dots, strings.Replace(name, "-", "_", 1)} {
			fields = append(fields, spelling+": evil")
		}
	}
	return append(fields, "Remote_User: evil")
}

// No alias of an identity or routing field is forwarded.
func TestAliasesOfTrustedFieldsAreDropped(t *testing.T) {
	for _, credential := range []string{bearer("a"), "Accept: */*"} {
		setup(nothing).sub(t, credential, func(w *world) {
			for i, path := range []string{"/user/repos", "/gitignore/templates", "/made/up", "/user"} {
				w.get(path, append(aliases(), credential)...)
				seen := w.seen.all()[i]
				w.want("host", seen.Host, "upstream.test")
				for name, values := range seen.Header {
					failIf(w, strings.Contains(strings.Join(values, ","), "evil"), "%s: %s was forwarded", path, name)
				}
			}
		})
	}
}

func TestUpstreamReceivesOnlyTheChosenCredential(t *testing.T) {
	held := identifying(func(_ *http.Request, id *caller.Identity) {
		id.Passed, id.Credential = false, fixedCredential{value: "Bearer held"}
	})
	setup(nothing, held).run(t, func(w *world) {
		for i, path := range []string{"/user", "/made/up", "/repos/a/b/subscription"} {
			w.get(path, bearer("mine"), "Cookie: session=1", "Proxy-Authorization: Basic eA==", "X-Service-Otp: 123456", "X-Github-Otp: 123456",
				"X-Http-Method-Override: DELETE", "X-Api-Key: mine", "Authentication: mine", "X-Access-Token: mine", "Set-Cookie: a=b")
			seen := w.seen.all()[i]
			w.want("method", seen.Method, "GET")
			w.wantFields(path, seen.Header, "Authorization: Bearer held", "Cookie: ", "Proxy-Authorization: ", "X-Service-Otp: ", "X-Github-Otp: ",
				"X-Http-Method-Override: ", "X-Api-Key: ", "X-Access-Token: ")
		}
	})
}

func TestSetCookieIsNotShared(t *testing.T) {
	response := func(token string) []string {
		return lines(fresh, `Etag: "one"`, "Set-Cookie: session=of "+token, "Proxy-Authenticate: evil", "Alt-Svc: evil", "Strict-Transport-Security: evil",
			"X-Nominated: evil", "Connection: x-nominated")
	}
	lacks := lines("Proxy-Authenticate", "Alt-Svc", "Strict-Transport-Security", "X-Nominated")
	for _, path := range []string{"/gitignore/templates", "/made/up"} {
		runScenarios(t, scenario{name: path, path: path, steps: []step{
			{token: "a", response: response("a")},
			{token: "b", response: response("b"), has: lines("Set-Cookie: session=of b"), lacks: lacks},
			{response: response("none"), has: lines("Set-Cookie: session=of none"), lacks: lacks},
		}})
	}
}

// The Host of a client affects neither the upstream request nor the cache key. Only links in the response to this
// client use the Host.
func TestClientHostAffectsOnlyItsOwnLinks(t *testing.T) {
	setup(repliesWith(func(r *http.Request) string { return r.Host }, "Link: <"+upstreamURL+`/x?page=2>; rel="next"`, fresh)).run(t, func(w *world) {
		for i, host := range []string{"evil.test", "GATEWAY.test", "xn--gateway-9ua.test", "gateway.test.", "gateway.test:80", "gateway.test", "UPSTREAM.TEST:80"} {
			r := parseResponse(t, w.raw("GET /gitignore/templates HTTP/1.1\r\nHost: "+host+"\r\nX-Forwarded-Host: evil.test\r\nConnection: close\r\n\r\n"))
			w.want("status", r.StatusCode, 200)
			w.want("body", r.body, "upstream.test")
			w.want("link", r.Header.Get("Link"), "<http://"+host+`/x?page=2>; rel="next"`)
			w.want("hit", strings.Contains(r.Header.Get("Cache-Status"), "weir; hit"), i > 0)
		}
		withoutHost := parseResponse(t, strings.Replace(w.raw("GET /gitignore/templates HTTP/1.0\r\n\r\n"), "HTTP/1.0", "HTTP/1.1", 1))
		w.want("link without a Host field", withoutHost.Header.Get("Link"), "<http://pipe/x?page=2>; rel=\"next\"") // the address of the listener
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}
