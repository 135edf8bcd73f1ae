package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// smallHouse is a gateway with the room that 64 MiB give, and the clients who come to it.
type smallHouse struct {
	*testing.T
	url    string
	client *http.Client
	came   atomic.Int32 // each client has an account of its own
}

const roomOf64MiB = 431

// newSmallHouse starts one; its API answers when takes returns.
func newSmallHouse(t *testing.T, takes func(context.Context)) *smallHouse {
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { takes(r.Context()) }))
	t.Cleanup(api.Close)
	transport := &http.Transport{MaxIdleConnsPerHost: 4096}
	t.Cleanup(transport.CloseIdleConnections)
	h := &smallHouse{T: t, url: "http://" + freeAddress(t), client: &http.Client{Transport: transport, Timeout: 2 * time.Minute}}
	f := emptyFleet(t)
	f.env = []string{"GOMEMLIMIT=64MiB"}
	path := f.file("weir.yaml", `upstream: {url: "`+api.URL+`", timeout: 3m}`+"\nlimits: {inbound: {rate: 0}, cold_start: trust}\ncache: {memory: 8MiB}")
	f.start("serve", "--config", path, "--listen", strings.TrimPrefix(h.url, "http://"), "--admin", freeAddress(t))
	f.answers(h.url + "/_weir/")
	return h
}

// offered is what clients got, whoever was answered meanwhile.
type offered struct {
	mu      sync.Mutex
	good    int
	refused []time.Duration // how long each took
	other   map[string]int
}

// offer has n clients come at a rate. It returns when each has its answer.
func (h *smallHouse) offer(n int, perSecond float64) *offered {
	o := &offered{other: map[string]int{}}
	var clients sync.WaitGroup
	began := time.Now()
	for i := range n {
		pass(h.Context(), time.Until(began.Add(time.Duration(float64(i)/perSecond*float64(time.Second)))))
		clients.Go(func() { o.note(h.ask()) })
	}
	clients.Wait()
	slices.Sort(o.refused)
	return o
}

// ask is one client.
func (h *smallHouse) ask() (resp *http.Response, took time.Duration, err error) {
	who := h.came.Add(1)
	req, err := http.NewRequestWithContext(h.Context(), http.MethodGet, fmt.Sprint(h.url, "/users/", who), http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Authorization", fmt.Sprint("Bearer ", who))
	began := time.Now()
	resp, err = h.client.Do(req)
	if err != nil {
		return nil, 0, errors.Unwrap(err) // without the address, which no other has
	}
	took = time.Since(began)
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, took, errors.Join(err, resp.Body.Close())
}

func (o *offered) note(resp *http.Response, took time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil:
		o.other[err.Error()]++
	case resp.StatusCode == http.StatusOK:
		o.good++
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "1" && strings.HasSuffix(resp.Header.Get("Cache-Status"), "detail=overload"):
		o.refused = append(o.refused, took)
	default:
		o.other[resp.Status+" "+resp.Header.Get("Cache-Status")]++
	}
}

// TestAFullHouse: an API that does not answer for a while fills the room of a process. Who
// comes then is refused while all of it waits, and who waits is answered in the end.
func TestAFullHouse(t *testing.T) {
	t.Parallel() // most of it waits
	var waiting atomic.Int32
	full, release := make(chan struct{}), make(chan struct{})
	h := newSmallHouse(t, func(ctx context.Context) {
		if waiting.Add(1) == roomOf64MiB {
			close(full)
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
	})
	first := make(chan *offered)
	go func() { first <- h.offer(roomOf64MiB, 1000) }()
	select {
	case <-full:
	case o := <-first:
		t.Fatalf("%d refused, else %v, before the room is full", len(o.refused), o.other)
	}
	more := h.offer(roomOf64MiB, 1000)
	if len(more.refused) != roomOf64MiB || waiting.Load() != roomOf64MiB {
		t.Errorf("beside %d: %d answered, %d refused, else %v", waiting.Load(), more.good, len(more.refused), more.other)
	}
	close(release)
	if o := <-first; o.good != roomOf64MiB {
		t.Errorf("of the first %d answered, %d refused, else %v", o.good, len(o.refused), o.other)
	}
}

// TestOverloadOfAProcess, in real time: five times of what a gateway can do before a slow
// API. With WEIR_OVERLOAD, on a machine that has nothing else to do, goodput stays within a
// tenth of its peak, and 99 of 100 that are refused know it in 50 ms: TestOverloadKeepsGoodput in
// package proxy holds both in virtual time. Else the machine decides, and all get an answer.
func TestOverloadOfAProcess(t *testing.T) {
	t.Parallel() // most of it waits
	const takes = 4 * time.Second
	h := newSmallHouse(t, func(ctx context.Context) { pass(ctx, takes) })
	capacity := roomOf64MiB / takes.Seconds()
	seconds := setting(t, "WEIR_OVERLOAD", 2*time.Second).Seconds()
	at := func(times float64) *offered {
		o := h.offer(int(times*capacity*seconds), times*capacity)
		if len(o.other) > 0 {
			t.Errorf("at %v times: %d answered, %d refused, else %v", times, o.good, len(o.refused), o.other)
		}
		return o
	}
	peak, over := at(0.9), at(5)
	if os.Getenv("WEIR_OVERLOAD") == "" {
		return
	}
	if len(peak.refused) > 0 || len(over.refused) == 0 {
		t.Fatalf("%d refused at 0.9 times, %d at 5 times", len(peak.refused), len(over.refused))
	}
	late := over.refused[len(over.refused)*99/100]
	t.Logf("capacity %.0f a second, for %.0f s each: %d answered at 0.9 times of it; %d answered and %d refused at 5 times, refused in %v (median), %v (99 of 100)",
		capacity, seconds, peak.good, over.good, len(over.refused), over.refused[len(over.refused)/2], late)
	if float64(over.good) < 0.9*float64(peak.good) {
		t.Error("goodput falls")
	}
	if late > 50*time.Millisecond {
		t.Errorf("one of 100 was refused after %v only", late)
	}
}
