package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// offered is what clients got that came at a rate, whoever was answered meanwhile.
type offered struct {
	mu      sync.Mutex
	good    int
	refused []time.Duration // how long each took
	other   map[string]int
}

// offer has a client, of an account of its own, come so often a second, for a time.
func offer(t *testing.T, url string, perSecond float64, lasts time.Duration) *offered {
	o := &offered{other: map[string]int{}}
	transport := &http.Transport{MaxIdleConnsPerHost: 4096}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	var clients sync.WaitGroup
	began := time.Now()
	for i := 0; time.Since(began) < lasts; {
		for ; float64(i) < time.Since(began).Seconds()*perSecond; i++ {
			req, err := http.NewRequest(http.MethodGet, fmt.Sprint(url, "/users/", i), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", fmt.Sprintf("Bearer %v of %v", i, perSecond))
			clients.Go(func() { o.note(client, req) })
		}
		pass(t.Context(), time.Millisecond)
	}
	clients.Wait()
	return o
}

func (o *offered) note(client *http.Client, req *http.Request) {
	began := time.Now()
	resp, err := client.Do(req)
	took := time.Since(began)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
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

// TestOverloadOfAProcess, in real time: five times of what a gateway can do before a slow
// API, with the room for 431 requests that 64 MiB give. Who is refused must not wait for it:
// with WEIR_OVERLOAD, on a machine that has nothing else to do, 99 of 100 must know in 50 ms.
func TestOverloadOfAProcess(t *testing.T) {
	t.Parallel() // most of it waits
	const takes, room = 4 * time.Second, 431
	capacity := room / takes.Seconds()
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { pass(r.Context(), takes) }))
	defer api.Close()
	f := emptyFleet(t)
	path := f.file("weir.yaml", `upstream: {url: "`+api.URL+`"}`+"\nlimits: {inbound: {rate: 0}, cold_start: trust}\ncache: {memory: 8MiB}")
	url := "http://" + freeAddress(t)
	f.env = []string{"GOMEMLIMIT=64MiB"}
	f.start("serve", "--config", path, "--listen", strings.TrimPrefix(url, "http://"), "--admin", freeAddress(t))
	f.answers(url + "/_weir/")
	lasts := setting(t, "WEIR_OVERLOAD", 5*time.Second)
	peak, over := offer(t, url, 0.9*capacity, lasts), offer(t, url, 5*capacity, lasts)
	slices.Sort(over.refused)
	if len(over.refused) == 0 || len(peak.refused) > 0 || len(peak.other)+len(over.other) > 0 {
		t.Fatalf("at the peak %d refused, else %v; at five times of it %d refused, else %v", len(peak.refused), peak.other, len(over.refused), over.other)
	}
	late := over.refused[len(over.refused)*99/100]
	t.Logf("capacity %.0f a second, for %v each: %d answered at 0.9 times of it; %d answered and %d refused at 5 times, refused in %v (median), %v (99 of 100)",
		capacity, lasts, peak.good, over.good, len(over.refused), over.refused[len(over.refused)/2], late)
	if float64(over.good) < 0.9*float64(peak.good) {
		t.Error("goodput falls")
	}
	if os.Getenv("WEIR_OVERLOAD") != "" && late > 50*time.Millisecond {
		t.Errorf("one of 100 was refused after %v only", late)
	}
}
