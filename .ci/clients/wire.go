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

// exchange is a request of a client's, and its answer.
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

// write writes it down without its credential, and not more of its body than one reads.
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

// writeFields writes fields down, without a credential.
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

// tap stands where a client reaches the gateway, passes everything on as it is, by TLS
// on either side, and writes it down.
type tap struct {
	address string
	server  *http.Server

	mu   sync.Mutex
	seen []exchange
}

// arrived is the key of an exchange that has no answer yet.
type arrived struct{}

func newTap(gateway string, roots *x509.CertPool, pair tls.Certificate) (*tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &tap{address: l.Addr().String()}
	silent := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: gateway})
			r.Out.Host = r.In.Host
		},
		Transport:      &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true, ForceAttemptHTTP2: true},
		ModifyResponse: t.note,
		ErrorLog:       silent,
	}
	arrive := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchange{at: time.Now(), method: r.Method, uri: r.RequestURI, protocol: r.Proto, sent: r.Header.Clone()}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), arrived{}, x)))
	})
	t.server = &http.Server{Handler: arrive, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ReadHeaderTimeout: time.Minute, ErrorLog: silent}
	go func() { _ = t.server.ServeTLS(l, "", "") }() // ends with close
	return t, nil
}

func (t *tap) close() { _ = t.server.Close() }

// note keeps an answer once it is whole; nothing here is so long that its client
// notices.
func (t *tap) note(resp *http.Response) error {
	x, _ := resp.Request.Context().Value(arrived{}).(exchange)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	x.status, x.got, x.body, x.done = resp.StatusCode, resp.Header.Clone(), body, time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = append(t.seen, x)
	return nil
}

func (t *tap) exchanges() []exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.seen)
}

// judge holds what went over the wire against what every scenario must have met.
func judge(wire []exchange, service string) error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	met := map[string]bool{}
	host := strings.TrimPrefix(service, "http://")
	for i, x := range wire {
		refused := x.status == http.StatusForbidden
		secondary := refused && bytes.Contains(x.body, []byte("secondary rate limit"))
		primary := refused && x.got.Get("X-Ratelimit-Remaining") == "0" && bytes.Contains(x.body, []byte("API rate limit exceeded"))
		path, _, _ := strings.Cut(strings.TrimPrefix(x.uri, "/api/v3"), "?")
		met["a page by its Link"] = met["a page by its Link"] || x.status == 200 && strings.Contains(x.uri, "page=3")
		met["an answer from the cache"] = met["an answer from the cache"] || strings.HasPrefix(x.got.Get("Cache-Status"), "weir; hit; ttl=")
		met["statistics"] = met["statistics"] || x.status == 200 && strings.Contains(path, "/stats/")
		met["a 304"] = met["a 304"] || x.status == http.StatusNotModified
		met["GraphQL"] = met["GraphQL"] || x.status == 200 && x.method == http.MethodPost && strings.HasSuffix(path, "/graphql")
		met["/rate_limit"] = met["/rate_limit"] || x.status == 200 && path == "/rate_limit"
		met["a write"] = met["a write"] || x.status == http.StatusCreated
		met["a primary refusal"] = met["a primary refusal"] || primary
		met["a secondary refusal"] = met["a secondary refusal"] || secondary
		for _, name := range sorted(x.got) {
			if strings.Contains(strings.Join(x.got[name], " "), host) {
				wrong("%s %s: the field %s names the API's own host", x.method, x.uri, name)
			}
		}
		if x.status >= 500 {
			wrong("%s %s: %d", x.method, x.uri, x.status)
		}
		if primary || secondary {
			problems = append(problems, patient(wire[i+1:], x, path))
		}
	}
	for _, what := range []string{"a page by its Link", "an answer from the cache", "statistics", "a 304", "GraphQL", "/rate_limit", "a write", "a primary refusal", "a secondary refusal"} {
		if !met[what] {
			wrong("%s was not seen", what)
		}
	}
	return errors.Join(problems...)
}

// patient reports who came back before the time that a refusal told, and a refusal that
// told none.
func patient(later []exchange, refusal exchange, path string) error {
	wait, err := strconv.Atoi(refusal.got.Get("Retry-After"))
	if err != nil {
		return fmt.Errorf("%s was refused without a time: %w", refusal.uri, err)
	}
	until := refusal.done.Add(time.Duration(wait)*time.Second - time.Second)
	for _, x := range later {
		if x.method == refusal.method && strings.HasSuffix(strings.Split(x.uri, "?")[0], path) && x.at.Before(until) {
			return fmt.Errorf("%s %s was sent %s before the time that its refusal told", x.method, x.uri, until.Sub(x.at))
		}
	}
	return nil
}
