package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/proxy/wire"
)

// These are the paths of the upstream. The first three are operations of the catalogue.
const (
	smallPath   = "/repos/o/small/subscribers" // cacheable, 2 KB
	largePath   = "/repos/o/large/subscribers" // cacheable, 64 KB
	knownPath   = "/users/o/subscriptions"     // no-store, 2 KB
	unknownPath = "/repos/o/small/deployments" // no-store, 2 KB, not in the catalogue
	seenPath    = "/seen"                      // number of requests so far

	etag  = `"5d41402abc4b2a76b9719d911017c592"`
	token = "Bearer account-0"
)

// serve runs one of the servers of this program: KIND ADDRESS ARGUMENTS.
func serve(kind string, args []string) error {
	var handler http.Handler
	switch {
	case kind == "upstream" && len(args) == 1:
		handler = newUpstream()
	case kind == "handler" && len(args) == 2:
		h, err := newHandler(args[1])
		if err != nil {
			return err
		}
		handler = h
	case kind == "reverseproxy" && len(args) >= 2:
		target := &url.URL{Scheme: "http", Host: args[1]}
		handler = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: wire.NewTransport()}
		if len(args) == 3 {
			handler = counted(handler, args[2])
		}
	default:
		return fmt.Errorf("serve %s %q: no such server", kind, args)
	}
	return (&http.Server{Addr: args[0], Handler: handler}).ListenAndServe()
}

// newUpstream returns an API with a budget that no run exhausts.
func newUpstream() http.Handler {
	var requests atomic.Int64
	const limit = 1_000_000_000
	reset := strconv.FormatInt(time.Now().Add(12*time.Hour).Unix(), 10)
	small, large := []byte("["+strings.Repeat("2048,", 408)+"1234567]"), []byte("["+strings.Repeat("65536,", 10921)+"12345678]")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, body := w.Header(), small
		switch r.URL.Path {
		case seenPath:
			_, _ = io.WriteString(w, strconv.FormatInt(requests.Load(), 10))
			return
		case smallPath:
			h.Set("Cache-Control", "public, max-age=7200, s-maxage=7200")
		case largePath:
			h.Set("Cache-Control", "public, max-age=7200, s-maxage=7200")
			body = large
		default:
			h.Set("Cache-Control", "no-store")
		}
		used := requests.Add(1)
		h.Set("Content-Type", "application/json; charset=utf-8")
		h.Set("Etag", etag)
		h.Set("Vary", "Accept, Authorization")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Ratelimit-Limit", strconv.Itoa(limit))
		h.Set("X-Ratelimit-Remaining", strconv.FormatInt(limit-used, 10))
		h.Set("X-Ratelimit-Reset", reset)
		h.Set("X-Ratelimit-Resource", "core")
		h.Set("X-Ratelimit-Used", strconv.FormatInt(used, 10))
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
}

// hit is a response of Weir that the bare handler repeats.
type hit struct {
	Header, NotModified http.Header
	Body                []byte
}

// record writes Weir's hits on both cacheable paths to a file.
func record(address, file string) error {
	get := func(path, condition string) (http.Header, []byte, error) {
		req, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return nil, nil, err
		}
		req.Header.Set("Authorization", token)
		req.Header.Set("Accept-Encoding", "identity")
		if condition != "" {
			req.Header.Set("If-None-Match", condition)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		resp.Header.Del("Date") // net/http adds this field
		return resp.Header, body, err
	}
	hits := map[string]hit{}
	for _, path := range []string{smallPath, largePath} {
		if _, _, err := get(path, ""); err != nil { // stores the response
			return err
		}
		header, body, err := get(path, "")
		if err != nil {
			return err
		}
		notModified, _, err := get(path, etag)
		if err != nil {
			return err
		}
		if !strings.Contains(header.Get("Cache-Status"), "hit") {
			return fmt.Errorf("record %s: not a hit: %v", path, header)
		}
		hits[path] = hit{header, notModified, body}
	}
	text, err := json.Marshal(hits)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// newHandler returns a handler that repeats recorded hits from memory.
func newHandler(file string) (http.Handler, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var hits map[string]hit
	if err := json.Unmarshal(text, &hits); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, ok := hits[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		header, status := h.Header, http.StatusOK
		if r.Header.Get("If-None-Match") == etag {
			header, status, h.Body = h.NotModified, http.StatusNotModified, nil
		}
		for name, values := range header {
			w.Header()[name] = values
		}
		w.WriteHeader(status)
		_, _ = w.Write(h.Body)
	}), nil
}

//go:embed conf/count.lua
var countScript string

// counted calls a short script in Redis before each request.
func counted(next http.Handler, address string) http.Handler {
	client, script := redis.NewClient(&redis.Options{Addr: address}), redis.NewScript(countScript)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := "count:" + r.Header.Get("Authorization")
		if err := script.Run(r.Context(), client, []string{key}, time.Minute.Milliseconds()).Err(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}
