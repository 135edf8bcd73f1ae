package proxy

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func TestLoopIsAnsweredWith508(t *testing.T) {
	for _, gateways := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			listeners := map[string]*testservers.PipeListener{}
			names := []string{"a.test", "b.test", "c.test"}[:gateways]
			transport := NewTransport()
			defer transport.CloseIdleConnections()
			transport.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
				return listeners[address].Dial(ctx, "", "")
			}
			for i, name := range names {
				w := newWorld(t, nothing, func(c *Config) {
					c.Upstream = &url.URL{Scheme: "http", Host: names[(i+1)%gateways]}
					c.Transport = transport
				})
				address := name + ":80"
				listeners[address] = testservers.ServePipe(t, testservers.PipeAddress(address), &http.Server{Handler: w.gateway})
			}
			client := http.Client{Transport: transport}
			for _, path := range []string{"/repos/acme/widgets", "/made/up"} {
				began := time.Now()
				r, err := client.Get("http://a.test" + path)
				if err != nil {
					t.Fatal(err)
				}
				_ = r.Body.Close()
				if took := time.Since(began); r.StatusCode != http.StatusLoopDetected || took > time.Second {
					t.Errorf("%d gateways, %s: got %d after %v, want 508 within a second", gateways, path, r.StatusCode, took)
				}
			}
		})
	}
}

func TestViaOfTheClientIsKept(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		for _, path := range []string{"/users/a", "/made/up"} {
			w.get(path, "Via: 1.0 fred, 1.1 weir-other", "Via: HTTP/2 edge (a, b)")
		}
		for _, r := range w.seen.all() {
			if want := []string{"1.0 fred, 1.1 weir-other", "HTTP/2 edge (a, b)", w.gateway.via[0]}; !slices.Equal(r.Header["Via"], want) {
				w.Errorf("%s: the upstream got Via %q, want %q", r.URL.Path, r.Header["Via"], want)
			}
		}
	})
}
