package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// exchange is a request with its response.
type exchange struct {
	at, done time.Time
	method   string
	uri      string
	protocol string
	sent     http.Header
	status   int
	got      http.Header
	body     []byte
}

// write writes the exchange without its credential, and with the beginning of the body.
func (x exchange) write(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\n%s > %s %s %s\n", x.at.UTC().Format("15:04:05.000"), x.method, x.uri, x.protocol)
	writeFields(w, "             > ", x.sent)
	_, _ = fmt.Fprintf(w, "%s < %d\n", x.done.UTC().Format("15:04:05.000"), x.status)
	writeFields(w, "             < ", x.got)
	const most = 400
	if len(x.body) > 0 {
		_, _ = fmt.Fprintf(w, "             < %s\n", x.body[:min(len(x.body), most)])
	}
}

// writeFields writes header fields without the credential.
func writeFields(w io.Writer, before string, fields http.Header) {
	for _, name := range sorted(fields) {
		value := strings.Join(fields[name], ", ")
		if name == "Authorization" {
			kind, _, _ := strings.Cut(value, " ")
			value = kind + " ***"
		}
		_, _ = fmt.Fprintf(w, "%s%s\n", before, strings.TrimSpace(name+": "+value))
	}
}

func sorted(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// recorder is a TLS proxy in front of the gateway that records all exchanges.
type recorder struct {
	address string
	server  *http.Server

	mu  sync.Mutex
	all []exchange
}

// arrived is the context key of an exchange without a response.
type arrived struct{}

func newRecorder(gateway string, roots *x509.CertPool, pair tls.Certificate) (*recorder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &recorder{address: l.Addr().String()}
	silent := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: gateway})
			r.Out.Host = r.In.Host
		},
		Transport:      &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true, ForceAttemptHTTP2: true},
		ModifyResponse: t.record,
		ErrorLog:       silent,
	}
	arrive := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchange{at: time.Now(), method: r.Method, uri: r.RequestURI, protocol: r.Proto, sent: r.Header.Clone()}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), arrived{}, x)))
	})
	t.server = &http.Server{Handler: arrive, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ReadHeaderTimeout: time.Minute, ErrorLog: silent}
	go func() { _ = t.server.ServeTLS(l, "", "") }() // until close
	return t, nil
}

func (t *recorder) close() { _ = t.server.Close() }

// record records a response after its body is complete.
func (t *recorder) record(resp *http.Response) error {
	x, _ := resp.Request.Context().Value(arrived{}).(exchange)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	x.status, x.got, x.body, x.done = resp.StatusCode, resp.Header.Clone(), body, time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, x)
	return nil
}

func (t *recorder) exchanges() []exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// check returns an error for each exchange that must not occur, and for each kind of exchange
// that is missing.
func check(wire []exchange, service string) error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	met := map[string]bool{}
	host := strings.TrimPrefix(service, "http://")
	for i, x := range wire {
		refused := x.status == http.StatusForbidden
		secondary := refused && bytes.Contains(x.body, []byte("secondary rate limit"))
		primary := refused && x.got.Get("X-Ratelimit-Remaining") == "0" && bytes.Contains(x.body, []byte("API rate limit exceeded"))
		path, _, _ := strings.Cut(strings.TrimPrefix(x.uri, "/api/v3"), "?")
		met["a next page from Link"] = met["a next page from Link"] || x.status == 200 && strings.Contains(x.uri, "page=3")
		met["a response from the cache"] = met["a response from the cache"] || strings.HasPrefix(x.got.Get("Cache-Status"), "weir; hit; ttl=")
		met["statistics"] = met["statistics"] || x.status == 200 && strings.Contains(path, "/stats/")
		met["a 304"] = met["a 304"] || x.status == http.StatusNotModified
		met["GraphQL"] = met["GraphQL"] || x.status == 200 && x.method == http.MethodPost && strings.HasSuffix(path, "/graphql")
		met["/rate_limit"] = met["/rate_limit"] || x.status == 200 && path == "/rate_limit"
		met["a write"] = met["a write"] || x.status == http.StatusCreated
		met["a primary refusal"] = met["a primary refusal"] || primary
		met["a secondary refusal"] = met["a secondary refusal"] || secondary
		for _, name := range sorted(x.got) {
			if strings.Contains(strings.Join(x.got[name], " "), host) {
				wrong("%s %s: field %s contains the host of the upstream", x.method, x.uri, name)
			}
		}
		if x.status >= 500 {
			wrong("%s %s: %d", x.method, x.uri, x.status)
		}
		if primary || secondary {
			problems = append(problems, respectsRetryAfter(wire[i+1:], x, path))
		}
	}
	for _, kind := range []string{"a next page from Link", "a response from the cache", "statistics", "a 304", "GraphQL", "/rate_limit", "a write", "a primary refusal", "a secondary refusal"} {
		if !met[kind] {
			wrong("%s is missing", kind)
		}
	}
	return errors.Join(problems...)
}

// respectsRetryAfter returns an error if a request was repeated before Retry-After, or if a
// refusal has no Retry-After.
func respectsRetryAfter(later []exchange, refusal exchange, path string) error {
	wait, err := strconv.Atoi(refusal.got.Get("Retry-After"))
	if err != nil {
		return fmt.Errorf("refusal of %s without Retry-After: %w", refusal.uri, err)
	}
	until := refusal.done.Add(time.Duration(wait)*time.Second - time.Second)
	for _, x := range later {
		if x.method == refusal.method && strings.HasSuffix(strings.Split(x.uri, "?")[0], path) && x.at.Before(until) {
			return fmt.Errorf("%s %s was repeated %s before Retry-After", x.method, x.uri, until.Sub(x.at))
		}
	}
	return nil
}
