package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestTurns asks two servers as often as each is to be asked, and some that answer what was
// not asked for.
func TestTurns(t *testing.T) {
	serve := func(status, size int, asked *atomic.Int64) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != passing || r.Header.Get("Authorization") != token {
				t.Errorf("asked for %s by %q", r.URL, r.Header.Get("Authorization"))
			}
			asked.Add(1)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.Repeat("a", size))
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	var first, second, others atomic.Int64
	whole := serve(http.StatusOK, smallSize, &first)
	var out bytes.Buffer
	if err := turns(t.Context(), &out, []string{"2", whole, serve(http.StatusOK, smallSize, &second)}); err != nil {
		t.Fatal(err)
	}
	var p50 []time.Duration
	if err := json.Unmarshal(out.Bytes(), &p50); err != nil || len(p50) != 2 || min(p50[0], p50[1]) <= 0 {
		t.Errorf("%s: %v, want the median of each", out.Bytes(), err)
	}
	if first.Load() != 2*perTurn || second.Load() != 2*perTurn {
		t.Errorf("asked %d times and %d, want both %d", first.Load(), second.Load(), 2*perTurn)
	}
	for name, args := range map[string][]string{
		"none":        {"1"},
		"no turn":     {"0", whole},
		"no address":  {"1", "127.0.0.1:1"},
		"refused":     {"1", serve(http.StatusTooManyRequests, smallSize, &others)},
		"cut off":     {"1", serve(http.StatusOK, smallSize-1, &others)},
		"one of them": {"1", whole, serve(http.StatusOK, 0, &others)},
	} {
		if err := turns(t.Context(), io.Discard, args); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
