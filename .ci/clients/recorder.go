package main

import (
	"bytes"
	"compress/gzip"
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
func (e exchange) write(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\n%s > %s %s %s\n", e.at.UTC().Format("15:04:05.000"), e.method, e.uri, e.protocol)
	writeFields(w, "             > ", e.sent)
	_, _ = fmt.Fprintf(w, "%s < %d\n", e.done.UTC().Format("15:04:05.000"), e.status)
	writeFields(w, "             < ", e.got)
	const most = 400
	if len(e.body) > 0 {
		_, _ = fmt.Fprintf(w, "             < %s\n", e.body[:min(len(e.body), most)])
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
		e := exchange{at: time.Now(), method: r.Method, uri: r.RequestURI, protocol: r.Proto, sent: r.Header.Clone()}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), arrived{}, e)))
	})
	t.server = &http.Server{Handler: arrive, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ReadHeaderTimeout: time.Minute, ErrorLog: silent}
	go func() { _ = t.server.ServeTLS(l, "", "") }() // until close is called
	return t, nil
}

func (t *recorder) close() { _ = t.server.Close() }

// record records a response after its body is complete.
func (t *recorder) record(resp *http.Response) error {
	e, _ := resp.Request.Context().Value(arrived{}).(exchange)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.Header.Get("Content-Encoding") == "gzip" && len(body) > 0 {
		coded, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return err
		}
		if body, err = io.ReadAll(coded); err != nil {
			return err
		}
	}
	e.status, e.got, e.body, e.done = resp.StatusCode, resp.Header.Clone(), body, time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, e)
	return nil
}

func (t *recorder) exchanges() []exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// check returns an error for each forbidden exchange, and for each kind of exchange that is missing.
func check(wire []exchange, service string) error {
	var problems []error
	report := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	seen := map[string]bool{}
	host := strings.TrimPrefix(service, "http://")
	for i, e := range wire {
		refused := e.status == http.StatusForbidden
		secondary := refused && bytes.Contains(e.body, []byte("secondary rate limit"))
		primary := refused && e.got.Get("X-Ratelimit-Remaining") == "0" && bytes.Contains(e.body, []byte("API rate limit exceeded"))
		path, _, _ := strings.Cut(strings.TrimPrefix(e.uri, "/api/v3"), "?")
		seen["a next page from Link"] = seen["a next page from Link"] || e.status == 200 && strings.Contains(e.uri, "page=3")
		seen["a response from the cache"] = seen["a response from the cache"] || strings.HasPrefix(e.got.Get("Cache-Status"), "weir; hit; ttl=")
		seen["statistics"] = seen["statistics"] || e.status == 200 && strings.Contains(path, "/stats/")
		seen["a 304"] = seen["a 304"] || e.status == http.StatusNotModified
		seen["GraphQL"] = seen["GraphQL"] || e.status == 200 && e.method == http.MethodPost && strings.HasSuffix(path, "/graphql")
		seen["/rate_limit"] = seen["/rate_limit"] || e.status == 200 && path == "/rate_limit"
		seen["a write"] = seen["a write"] || e.status == http.StatusCreated
		seen["a primary refusal"] = seen["a primary refusal"] || primary
		seen["a secondary refusal"] = seen["a secondary refusal"] || secondary
		for _, name := range sorted(e.got) {
			if strings.Contains(strings.Join(e.got[name], " "), host) {
				report("%s %s: field %s contains the host of the upstream", e.method, e.uri, name)
			}
		}
		if e.status >= 500 {
			report("%s %s: %d", e.method, e.uri, e.status)
		}
		if primary || secondary {
			problems = append(problems, respectsRetryAfter(wire[i+1:], e, path))
		}
	}
	for _, kind := range []string{"a next page from Link", "a response from the cache", "statistics", "a 304", "GraphQL", "/rate_limit", "a write", "a primary refusal", "a secondary refusal"} {
		if !seen[kind] {
			report("no exchange with %s occurred", kind)
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
	for _, e := range later {
		if e.method == refusal.method && strings.HasSuffix(strings.Split(e.uri, "?")[0], path) && e.at.Before(until) {
			return fmt.Errorf("%s %s was repeated %s before Retry-After", e.method, e.uri, until.Sub(e.at))
		}
	}
	return nil
}
