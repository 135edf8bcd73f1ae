//go:build e2e && soak

package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A window of the run has ten minutes and 600 requests, a sixth of an hour.
const (
	sharesWindow  = 10 * time.Minute
	sharesWindows = 3
	sharesLimit   = 600
)

// served is a request that the gateway forwarded for a client.
type served struct {
	client string
	at     time.Duration // since the start
}

// sharedRun collects the outcome of three clients of one account.
type sharedRun struct {
	*fleet
	gateway string // https URL
	ca      string // file of the CA certificate
	http    *http.Client
	began   time.Time

	mu      sync.Mutex
	served  []served
	refused map[string]int // by client
}

// TestAgentBesidePersonAndJob runs a script that spends without a pause, a person who uses gh, and a job that comes every
// two and a half minutes, on one account for three windows. The person and the job get all their requests, and the script
// gets the rest. WEIR_PICTURE names a file for a picture in SVG.
func TestAgentBesidePersonAndJob(t *testing.T) {
	f := emptyFleet(t)
	limits := fmt.Sprintf("limits: {cold_start: trust, wait: 2s, inbound: {rate: 0}, primary: {user: %d, window: %v}}\n", sharesLimit, sharesWindow)
	f.startService("github", limits)
	roots := certify(t, f.dir)
	r := &sharedRun{
		fleet: f, ca: filepath.Join(f.dir, "ca.pem"), began: time.Now(), refused: map[string]int{},
		http: &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}},
	}
	config := fmt.Sprintf("upstream: {url: %q, dialect: github}\ntls: {certificates: [{certificate: tls.crt, key: tls.key}]}\n", f.service) + limits +
		"credentials: [{name: bot, kind: user, account: acme-bot, token: tok-owner}]\ncallers: {pass_through: false}\nclients:\n"
	for name, more := range map[string]string{"agent": "", "person": ", priority: interactive, guarantee: 0.1", "job": ", guarantee: 0.4"} {
		config += fmt.Sprintf("  - {name: %s, key: \"sha256:%x\", credentials: [bot]%s}\n", name, sha256.Sum256([]byte(name+"-key")), more)
	}
	r.gateway = "https://" + serve(t, f.file("weir.yaml", config)).address

	ctx, stop := context.WithTimeout(t.Context(), sharesWindows*sharesWindow)
	defer stop()
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() { r.agent(ctx, i) })
	}
	clients.Go(func() { r.job(ctx) })
	clients.Go(func() { r.person(ctx) })
	clients.Wait()

	seen, err := f.violations()
	failIf(t, err != nil || seen.Violations != 0, "violations: %+v, %v", seen, err)
	counts := map[string]int{}
	for _, s := range r.served {
		counts[s.client]++
	}
	t.Logf("served %v, refused %v", counts, r.refused)
	failIf(t, r.refused["person"]+r.refused["job"] > 0, "refused: %v", r.refused)
	all := len(r.served)
	failIf(t, all < sharesWindows*sharesLimit*99/100, "%d of %d requests were used", all, sharesWindows*sharesLimit)
	if file := os.Getenv("WEIR_PICTURE"); file != "" {
		write(t, file, r.picture())
	}
}

// record records the outcome of a request.
func (r *sharedRun) record(client string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok {
		r.served = append(r.served, served{client, time.Since(r.began)})
	} else {
		r.refused[client]++
	}
}

// send sends a request that the cache cannot answer, and reports its success.
func (r *sharedRun) send(ctx context.Context, client string, n int) bool {
	url := fmt.Sprintf("%s/repos/acme/widgets/subscribers?page=%d", r.gateway, n)
	resp, _, err := do(r.http, newRequest(ctx, http.MethodGet, url, "", "Authorization: Bearer "+client+"-key"))
	if err != nil {
		return false
	}
	if ctx.Err() == nil {
		r.record(client, resp.StatusCode == http.StatusOK)
	}
	return resp.StatusCode == http.StatusOK
}

// agent sends requests without a pause, and ignores Retry-After.
func (r *sharedRun) agent(ctx context.Context, loop int) {
	for n := loop * 1_000_000; ctx.Err() == nil; n++ {
		if !r.send(ctx, "agent", n) {
			sleep(ctx, time.Second)
		}
	}
}

// job sends 60 requests every two and a half minutes, first after a minute.
func (r *sharedRun) job(ctx context.Context) {
	sleep(ctx, time.Minute)
	for n := 10_000_000; ctx.Err() == nil; sleep(ctx, sharesWindow/4) {
		for range 60 {
			n++
			r.send(ctx, "job", n)
		}
	}
}

// person runs gh every 15 seconds.
func (r *sharedRun) person(ctx context.Context) {
	for n := 20_000_000; ctx.Err() == nil; n++ {
		gh := exec.CommandContext(ctx, "gh", "api", fmt.Sprintf("repos/acme/widgets/subscribers?page=%d", n))
		gh.Env = append(os.Environ(), "GH_HOST="+strings.TrimPrefix(r.gateway, "https://"), "GH_ENTERPRISE_TOKEN=person-key", "SSL_CERT_FILE="+r.ca, "GH_CONFIG_DIR="+r.dir)
		text, err := gh.CombinedOutput()
		if ctx.Err() == nil {
			r.record("person", err == nil)
		}
		if err != nil && ctx.Err() == nil {
			r.Logf("gh: %s", text)
		}
		sleep(ctx, 15*time.Second)
	}
}

// picture draws the requests of each client in each window over time.
func (r *sharedRun) picture() string {
	const width, height, left, top = 900.0, 300.0, 60.0, 20.0
	total := sharesWindows * sharesWindow
	x := func(at time.Duration) float64 { return left + width*float64(at)/float64(total) }
	y := func(n int) float64 { return top + height - height*float64(n)/sharesLimit }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13">`+"\n", left+width+40, top+height+60)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	for n := 0; n <= sharesLimit; n += 100 {
		fmt.Fprintf(&b, `<path d="M%.0f %.1fH%.0f" stroke="#ddd"/><text x="%.0f" y="%.1f" text-anchor="end">%d</text>`+"\n", left, y(n), left+width, left-8, y(n)+4, n)
	}
	for minute := time.Duration(0); minute <= total; minute += 5 * time.Minute {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.0f" text-anchor="middle">%.0f min</text>`+"\n", x(minute), top+height+18, minute.Minutes())
	}
	for i, c := range []struct{ client, colour string }{{"agent", "#c0392b"}, {"job", "#2471a3"}, {"person", "#1e8449"}} {
		counts, path := make([]int, sharesWindows), ""
		last := -1
		for _, s := range r.served {
			w := min(sharesWindows-1, int(s.at/sharesWindow))
			if s.client != c.client {
				continue
			}
			if w != last {
				path += fmt.Sprintf("M%.1f %.1f", x(time.Duration(w)*sharesWindow), y(0))
				last = w
			}
			path += fmt.Sprintf("H%.1f", x(s.at))
			counts[w]++
			path += fmt.Sprintf("V%.1f", y(counts[w]))
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, c.colour)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" fill="%s">%s: %d, %d and %d requests</text>`+"\n", left+float64(i)*300, top+height+45, c.colour, c.client, counts[0], counts[1], counts[2])
	}
	return b.String() + "</svg>\n"
}
