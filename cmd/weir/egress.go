package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/wire"
)

// egress selects the proxy of upstream.proxy for outbound requests. The zero value selects none. Variables of the
// environment have no effect.
type egress struct {
	proxyFor atomic.Pointer[func(*url.URL) (*url.URL, error)]
}

// configure sets the proxy for further requests.
func (e *egress) configure(u config.Upstream) {
	next := u.ProxyFor()
	e.proxyFor.Store(&next)
}

// proxy returns the proxy for a request, or nil.
func (e *egress) proxy(r *http.Request) (*url.URL, error) {
	if f := e.proxyFor.Load(); f != nil {
		return (*f)(r.URL)
	}
	return nil, nil
}

// transport returns a transport for requests through the proxy.
func (e *egress) transport() *http.Transport {
	t := wire.NewTransport()
	t.Proxy = e.proxy
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, connect *http.Request, resp *http.Response) error {
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		return &egressRefusal{resp.StatusCode, "CONNECT " + connect.Host}
	}
	return t
}

// fileTransport returns a transport for hosts with files, event streams and long polls. It uses HTTP/1.1, because the kernel
// fits the receive window of a connection to the speed of the client. A stream of HTTP/2 would keep its window in memory for
// each client that reads slowly.
func (e *egress) fileTransport() *http.Transport {
	t := e.transport()
	t.ForceAttemptHTTP2, t.Protocols = false, &http.Protocols{}
	t.Protocols.SetHTTP1(true)
	t.ReadBufferSize, t.WriteBufferSize = 4<<10, 4<<10 // bodies bypass these buffers
	return t
}

// egressRefusal is the error for a request that the proxy of upstream.proxy refused.
type egressRefusal struct {
	status  int
	request string
}

func (e *egressRefusal) Error() string {
	remedy := "permit this target in the proxy"
	switch {
	case e.status == http.StatusProxyAuthRequired:
		remedy = "correct the user name and the password in upstream.proxy"
	case e.status >= http.StatusInternalServerError:
		remedy = "check that the proxy can reach this target"
	}
	return fmt.Sprintf("upstream.proxy: the proxy refused %s with %d %s; %s", e.request, e.status, http.StatusText(e.status), remedy)
}

// throughProxy is a transport that returns an error if the proxy refuses its credentials. Requests for http URLs have no
// CONNECT, so the refusal would look like a response of the upstream.
type throughProxy struct{ *http.Transport }

func (t throughProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusProxyAuthRequired || r.URL.Scheme != "http" {
		return resp, err
	}
	if used, _ := t.Proxy(r); used == nil {
		return resp, nil
	}
	_ = resp.Body.Close()
	return nil, &egressRefusal{resp.StatusCode, r.Method + " http://" + r.URL.Host}
}

// firstAnswer is a transport that calls check for the first response.
type firstAnswer struct {
	throughProxy
	checked atomic.Bool
	check   func(http.Header)
}

func (t *firstAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.throughProxy.RoundTrip(r)
	if err == nil && !t.checked.Load() && t.checked.CompareAndSwap(false, true) {
		t.check(resp.Header)
	}
	return resp, err
}

// foreignDialect returns the dialect in which the upstream answers if it is not the configured one.
func foreignDialect(c *config.Config, answer http.Header) (found, remedy string) {
	name := policy.DialectOfResponse(answer)
	if name == "" || name == c.Upstream.Dialect {
		return "", ""
	}
	return fmt.Sprintf("the upstream answers as the dialect %s, but upstream.dialect is %s", name, c.Upstream.Dialect), "set upstream.dialect to " + name
}
