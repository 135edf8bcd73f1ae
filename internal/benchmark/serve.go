package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/proxy"
)

// serve is one of the servers that are no program of their own, until ctx ends:
// KIND ADDRESS and what the kind needs.
func serve(ctx context.Context, kind string, args []string) error {
	if len(args) < 1 {
		return fmt.Errorf("%s: want an address", kind)
	}
	address, args := args[0], args[1:]
	var handler http.Handler
	var err error
	switch {
	case kind == "upstream":
		handler = newUpstream(time.Now())
	case kind == "sink":
		handler = http.HandlerFunc(swallow)
	case kind == "bare" && len(args) == 1:
		handler, err = newBare(args[0])
	case kind == "reverseproxy" && len(args) == 1:
		handler = newReverseProxy(args[0])
	case kind == "reverseproxy-redis" && len(args) == 2:
		handler = counted(newReverseProxy(args[0]), args[1])
	default:
		err = fmt.Errorf("%q with %d arguments: there is no such server", kind, len(args))
	}
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler} //nolint:gosec // bare: a deadline costs a call to the runtime for each request, and only loopback gets here
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// swallow takes what telemetry sends over HTTP.
func swallow(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
}

// answer is what a bare handler answers on a path: an answer of the gateway, field for
// field.
type answer struct {
	Path       string
	Body       []byte
	ETag       string
	Fields     http.Header // of 200
	Unmodified http.Header // of 304
}

// bare answers from memory, and does nothing else.
type bare map[string]answer

// newBare takes its answers from a file.
func newBare(path string) (bare, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var answers []answer
	if err := json.Unmarshal(text, &answers); err != nil {
		return nil, err
	}
	b := bare{}
	for _, a := range answers {
		b[a.Path] = a
	}
	return b, nil
}

func (b bare) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := b[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	header := w.Header()
	if r.Header.Get("If-None-Match") == a.ETag {
		for name, values := range a.Unmodified {
			header[name] = values
		}
		w.WriteHeader(http.StatusNotModified)
		return
	}
	for name, values := range a.Fields {
		header[name] = values
	}
	_, _ = w.Write(a.Body)
}

// newReverseProxy is the standard library's with the gateway's connections.
func newReverseProxy(upstream string) http.Handler {
	target := &url.URL{Scheme: "http", Host: upstream}
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: proxy.NewTransport(),
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

//go:embed conf/count.lua
var countScript string

// counted calls a script in Redis before each request.
func counted(next http.Handler, address string) http.Handler {
	client := redis.NewClient(&redis.Options{Addr: address})
	count := redis.NewScript(countScript)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if err := count.Run(r.Context(), client, []string{"count:" + caller}, time.Minute.Milliseconds()).Err(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}
