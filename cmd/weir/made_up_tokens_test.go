package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// residentMegabytes returns the resident memory of a process, or 0 on a system without /proc.
func residentMegabytes(process int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		return 0
	}
	kilobytes, _ := strconv.Atoi(string(match[1]))
	return kilobytes / 1024
}

// hasRaceDetector reports whether this binary was built with the race detector.
func hasRaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// tokensToSend returns WEIR_TOKENS, or 3000 without it.
func tokensToSend(t *testing.T) int {
	text := cmp.Or(os.Getenv("WEIR_TOKENS"), "3000")
	tokens, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("WEIR_TOKENS: %v", err)
	}
	return tokens
}

// startProcess starts the binary in front of an upstream, and returns the address of the gateway and the process ID.
func startProcess(t *testing.T, upstream string) (address string, process int) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "weir.yaml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nupstream: {url: %s}\n"+
		"limits: {cold_start: trust, inbound: {rate: 100000, burst: 100000}}\ntelemetry: {access_log: off}\n", upstream)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log output
	server := exec.Command("weir", "serve", "--config", config) // testscript.Main adds it to PATH
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	testservers.Eventually(t, "the gateway has started", func(context.Context) bool {
		match := regexp.MustCompile(`gateway started.*address=(\S+)`).FindStringSubmatch(log.String())
		if match != nil {
			address = match[1]
		}
		return match != nil
	})
	return address, server.Process.Pid
}

// TestMadeUpTokensCostLittle sends WEIR_TOKENS made-up tokens from one address to a process. At most one request in 100
// reaches the upstream, and the memory grows by at most 60 MB.
func TestMadeUpTokensCostLittle(t *testing.T) {
	tokens := tokensToSend(t)
	var sent atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer good") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(upstream.Close)

	address, process := startProcess(t, upstream.URL)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(token string) (status int) {
		r, err := http.NewRequest(http.MethodGet, "http://"+address+"/user", http.NoBody)
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for range 500 {
		if status := get("good"); status != http.StatusOK {
			t.Fatalf("valid token: status %d", status)
		}
	}
	sent.Store(0)
	before, last, began := residentMegabytes(process), atomic.Int64{}, time.Now()
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for n := last.Add(1); n <= int64(tokens); n = last.Add(1) {
				if status := get(fmt.Sprint("made-up-", n)); status != http.StatusUnauthorized && status != http.StatusTooManyRequests {
					t.Errorf("made-up token: status %d", status)
				}
			}
		})
	}
	clients.Wait()
	after := residentMegabytes(process)
	t.Logf("%d tokens: %d MB before, %d MB after, %d requests upstream", tokens, before, after, sent.Load())
	allowed := max(int64(tokens/100), 20*int64(1+time.Since(began)/time.Minute)) // a slow machine needs several minutes
	growth := 60
	if hasRaceDetector() {
		growth *= 3 // its shadow memory grows with the memory of the process
	}
	if sent.Load() > allowed || after > before+growth {
		t.Errorf("%d of %d requests reached the upstream, and %d MB grew to %d MB", sent.Load(), tokens, before, after)
	}
	if status := get("good"); status != http.StatusOK {
		t.Errorf("valid token after the made-up tokens: status %d", status)
	}
}

// TestTokensOfClientsThatLeaveCostLittle sends WEIR_TOKENS made-up tokens from one address to a process. Each client
// disconnects before the upstream responds. At most 20 requests per minute reach the upstream. Two
// minutes later, the process has at most 10 MB more than before.
func TestTokensOfClientsThatLeaveCostLittle(t *testing.T) {
	tokens := tokensToSend(t)
	var sent atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer good" {
			return
		}
		sent.Add(1)
		<-r.Context().Done()
	}))
	t.Cleanup(upstream.Close)
	address, process := startProcess(t, upstream.URL)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(client.CloseIdleConnections)
	send := func(ctx context.Context, token string) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/user", http.NoBody)
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for range 500 {
		if status := send(t.Context(), "good"); status != http.StatusOK {
			t.Fatalf("valid token: status %d", status)
		}
	}
	before, last, began := residentMegabytes(process), atomic.Int64{}, time.Now()
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for n := last.Add(1); n <= int64(tokens); n = last.Add(1) {
				ctx, leave := context.WithTimeout(t.Context(), 20*time.Millisecond)
				send(ctx, fmt.Sprint("made-up-", n))
				leave()
			}
		})
	}
	clients.Wait()
	after, took := residentMegabytes(process), time.Since(began)
	if allowed := 20 * int64(1+took/time.Minute); sent.Load() > allowed {
		t.Errorf("%d of %d requests reached the upstream in %v, want at most %d", sent.Load(), tokens, took, allowed)
	}
	if status := send(t.Context(), "good"); status != http.StatusOK {
		t.Errorf("valid token after the made-up tokens: status %d", status)
	}
	growth := 10
	if hasRaceDetector() {
		growth *= 3
	}
	returned := after
	for until := time.Now().Add(2 * time.Minute); returned > before+growth && time.Now().Before(until); time.Sleep(time.Second) {
		returned = residentMegabytes(process)
	}
	t.Logf("%d tokens in %v: %d MB before, %d MB after, %d MB then, %d requests upstream", tokens, took, before, after, returned, sent.Load())
	if returned > before+growth {
		t.Errorf("%d MB grew to %d MB, and were %d MB two minutes later", before, after, returned)
	}
}
