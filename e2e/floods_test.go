//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// A flood is an attack from the addresses 127.0.0.2 and following. flood_attacks_test.go defines the attacks.
type flood struct {
	name   string
	secure bool // over TLS
	files  int  // descriptor limit of the gateway; 0 keeps the limit of the machine
	config string
	// attack opens a connection, sends one piece of the attack, and returns after this piece. It runs in many goroutines of
	// one or more processes until the context ends. The connections close at the end.
	attack    func(f *flooder, n int) error
	workers   int           // concurrent calls of attack in each process
	processes int           // 0 is 1
	settle    time.Duration // before the measurement, at most two phases; 0 is 3 s, in which the attack uses its bursts
	addresses int           // 0 is 1
	covered   bool          // TestHTTP2FloodsAreBounded in cmd/weir runs it too, so a short run skips it
}

// floodResult holds the latencies and errors of legitimate clients at 127.0.0.1, and the memory of the gateway, in one
// phase.
type floodResult struct {
	times  map[string][]time.Duration // by kind of request
	errors map[string]int
	memory int64 // the largest resident set of the gateway in bytes
}

// p99 returns the 99th percentile of some kinds of requests.
func (r *floodResult) p99(kinds ...string) time.Duration {
	var all []time.Duration
	for _, kind := range kinds {
		all = append(all, r.times[kind]...)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*99/100)]
}

// floodKinds are the requests of the legitimate clients: a hit and a forwarded request on a kept connection, and a hit
// on a new connection.
var floodKinds = []string{"hit", "forward", "connect"}

// TestFloods measures legitimate requests, and the memory of the gateway, before and during each attack. No legitimate
// request may fail, and the memory has a bound. "make floods" prints the figures of docs/internals/attacks.md.
// WEIR_FLOOD_PHASE sets the time of each measurement.
func TestFloods(t *testing.T) {
	phase := floodPhase(t)
	const maxGrowth = 150e6 // a busy machine collects garbage later
	for _, attack := range floods {
		if attack.covered && phase < shortFlood {
			continue
		}
		t.Run(attack.name, func(t *testing.T) {
			s := startFlooded(t, &attack)
			s.measure(phase / 2) // fills the cache and opens the connections
			idle := s.measure(phase)
			stop := s.startFlooders()
			sleep(t.Context(), min(cmp.Or(attack.settle, 3*time.Second), 2*phase))
			flooded := s.measure(phase)
			t.Log(stop())
			after := s.measure(phase / 2)
			a, b := idle.p99(floodKinds...), flooded.p99(floodKinds...)
			line := fmt.Sprintf("| %s | %.0f | %.0f | %.1f |", attack.name, a.Seconds()*1e3, b.Seconds()*1e3, float64(b)/float64(a))
			for _, kind := range floodKinds {
				line += fmt.Sprintf(" %.0f |", flooded.p99(kind).Seconds()*1e3)
			}
			t.Logf("%s %+.0f |", line, float64(flooded.memory-idle.memory)/1e6)
			for when, r := range map[string]floodResult{"before": idle, "during": flooded, "after": after} {
				failIf(t, len(r.errors) > 0 || len(r.times) < len(floodKinds), "%s the attack: %v, failed legitimate requests: %v", when, len(r.times), r.errors)
			}
			grown := flooded.memory - idle.memory
			failIf(t, grown > maxGrowth, "the memory of the gateway grew by %.0f MB, want at most %.0f MB", float64(grown)/1e6, maxGrowth/1e6)
		})
	}
}

// floodPhase returns the time of each measurement. Tests do less if it is shorter than shortFlood.
func floodPhase(t *testing.T) time.Duration { return duration(t, "WEIR_FLOOD_PHASE", 10*time.Second) }

const shortFlood = 2 * time.Second

// flooded is a gateway under attack.
type flooded struct {
	*fleet
	attack  *flood
	weir    *replica
	url     string
	clients map[string]*http.Client
	next    int // number of the next forwarded request
}

func startFlooded(t *testing.T, attack *flood) *flooded {
	t.Helper()
	s := &flooded{fleet: emptyFleet(t), attack: attack}
	roots := certify(t, s.dir)
	upstream := testservers.FreeAddress(t)
	s.reexec("upstream", upstream)
	s.awaitHTTP("http://" + upstream)
	config := fmt.Sprintf("upstream: {url: %q}\nlimits: {cold_start: trust, points: {rest: 1000000}}\nwebhooks: {secret: hook}\n"+
		"drain: {timeout: 1s}\n%s", "http://"+upstream, attack.config)
	if attack.secure {
		config += "\ntls: {certificates: [{certificate: tls.crt, key: tls.key}]}\n"
	}
	limit := "true"
	if attack.files > 0 {
		limit = "ulimit -n " + strconv.Itoa(attack.files)
	}
	s.weir = &replica{process: startCommand(t, exec.Command("sh", "-c", limit+` && exec "$0" "$@"`, program,
		"serve", "--config", s.file("weir.yaml", config), "--listen", anyPort, "--admin", anyPort))}
	s.weir.awaitStart()
	s.url = map[bool]string{false: "http://", true: "https://"}[attack.secure] + s.weir.address
	s.clients = map[string]*http.Client{}
	for _, kind := range floodKinds {
		transport := &http.Transport{
			// Few connections, so that other addresses always have more waiting ones.
			TLSClientConfig: &tls.Config{RootCAs: roots}, MaxConnsPerHost: 10, MaxIdleConnsPerHost: 10,
			ForceAttemptHTTP2: true, DisableKeepAlives: kind == "connect",
		}
		t.Cleanup(transport.CloseIdleConnections)
		s.clients[kind] = &http.Client{Transport: transport, Timeout: 10 * time.Second}
	}
	return s
}

// reexec starts the test program in another role, which main reads from the environment. The returned function ends
// it, and returns its output.
func (s *flooded) reexec(role, address string) (stop func() string) {
	self, err := os.Executable()
	must(s, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), "WEIR_FLOOD="+role, "WEIR_FLOOD_ADDRESS="+address)
	input, err := c.StdinPipe() // the process ends with it
	must(s, err)
	var out testservers.Output
	c.Stdout, c.Stderr = &out, &out
	must(s, c.Start())
	stop = sync.OnceValue(func() string {
		_ = input.Close()
		if err := c.Wait(); err != nil {
			s.Errorf("%s: %v", role, err)
		}
		return out.String()
	})
	s.Cleanup(func() { stop() })
	return stop
}

// startFlooders starts the processes of the attack. The returned function ends them, and returns their output.
func (s *flooded) startFlooders() (stop func() string) {
	var stops []func() string
	for i := range max(1, s.attack.processes) {
		stops = append(stops, s.reexec(s.attack.name+"/"+strconv.Itoa(i), s.weir.address))
	}
	return func() (text string) {
		for _, stop := range stops {
			text += stop()
		}
		return text
	}
}

// measure sends legitimate requests for a while.
func (s *flooded) measure(phase time.Duration) floodResult {
	s.Helper()
	r := floodResult{times: map[string][]time.Duration{}, errors: map[string]int{}}
	ctx, stop := context.WithTimeout(s.Context(), phase)
	defer stop()
	var mu sync.Mutex
	var group sync.WaitGroup
	for kind, pause := range map[string]time.Duration{"hit": 10 * time.Millisecond, "forward": 20 * time.Millisecond, "connect": 50 * time.Millisecond} {
		group.Go(func() {
			var requests sync.WaitGroup
			defer requests.Wait()
			for ctx.Err() == nil {
				path := "/gitignore/templates"
				if kind == "forward" {
					s.next++
					path = "/users/legitimate" + strconv.Itoa(s.next)
				}
				requests.Go(func() {
					began := time.Now()
					err := s.request(s.clients[kind], path)
					mu.Lock()
					defer mu.Unlock()
					r.times[kind] = append(r.times[kind], time.Since(began))
					if err != nil {
						r.errors[kind+":"+kindOf(err)]++
					}
				})
				sleep(ctx, pause)
			}
		})
	}
	group.Go(func() {
		for ctx.Err() == nil {
			if m := processMemory(s.T, s.weir.cmd.Process.Pid, "VmRSS"); m > r.memory {
				r.memory = m
			}
			sleep(ctx, 20*time.Millisecond)
		}
	})
	group.Wait()
	return r
}

// request sends a legitimate request, and returns an error unless the response is complete and has status 200.
func (s *flooded) request(client *http.Client, path string) error {
	resp, _, err := do(client, newRequest(s.Context(), http.MethodGet, s.url+path, "", "Authorization: Bearer legitimate"))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s, %s", resp.Status, resp.Header.Get("Cache-Status"))
	}
	return nil
}

// flooder is a process that attacks a gateway.
type flooder struct {
	context.Context
	address   string
	secure    bool
	addresses int
}

// runRole runs the test program as an attacker or as the upstream. It ends with its standard input, or after five minutes.
func runRole(role, address string) error {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	defer stop()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if role == "upstream" {
		return serveUpstream(ctx, address)
	}
	// A lower priority leaves most processor time to the gateway, as with an attacker on another machine.
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10); err != nil {
		return err
	}
	name, process := filepath.Split(role)
	name = strings.TrimSuffix(name, "/")
	number, err := strconv.Atoi(process)
	i := slices.IndexFunc(floods, func(f flood) bool { return f.name == name })
	if i < 0 || err != nil {
		return fmt.Errorf("unknown attack %q", role)
	}
	attack := floods[i]
	f := &flooder{ctx, address, attack.secure, max(1, attack.addresses)}
	var mu sync.Mutex
	calls, errs := 0, map[string]int{}
	var group sync.WaitGroup
	for w := range attack.workers {
		group.Go(func() {
			for n := number*attack.workers + w; ctx.Err() == nil; n += attack.workers * max(1, attack.processes) {
				err := attack.attack(f, n)
				mu.Lock()
				calls++
				if err != nil && ctx.Err() == nil {
					errs[kindOf(err)]++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	fmt.Printf("%d pieces, errors %v\n", calls, errs)
	return nil
}

// kindOf returns an error without addresses.
func kindOf(err error) string {
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+1:]
}

// dialPlain connects from one of the attacker's addresses, without TLS. The connection closes at the end of the attack.
func (f *flooder) dialPlain(n int) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%f.addresses))}
	c, err := (&net.Dialer{LocalAddr: from, Timeout: 10 * time.Second}).DialContext(f, "tcp", f.address)
	if err != nil {
		return nil, err
	}
	return &floodConn{c, context.AfterFunc(f, func() { _ = c.Close() })}, nil
}

// floodConn closes at the end of the attack.
type floodConn struct {
	net.Conn
	closed func() bool
}

func (c *floodConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// dial connects with TLS if the gateway expects it.
func (f *flooder) dial(n int, protocol string) (net.Conn, error) {
	c, err := f.dialPlain(n)
	if err != nil || !f.secure {
		return c, err
	}
	s := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}) // an attacker verifies nothing
	if err := s.HandshakeContext(f); err != nil {
		_ = c.Close()
		return nil, err
	}
	return s, nil
}

// serveUpstream answers legitimate requests after 20 ms, and plays a hostile upstream for paths of the attacker.
func serveUpstream(ctx context.Context, address string) error {
	body := []byte(`{"a":"` + strings.Repeat("x", 2000) + `"}`)
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hostile := hostileUpstream(r.URL.Path); hostile != nil {
			hostile(w, r)
			return
		}
		testservers.Sleep(r.Context(), 20*time.Millisecond)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Ratelimit-Limit", "1000000")
		w.Header().Set("X-Ratelimit-Remaining", "900000")
		w.Header().Set("X-Ratelimit-Used", "100000")
		w.Header().Set("X-Ratelimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
		w.Header().Set("X-Ratelimit-Resource", "core")
		_, _ = w.Write(body)
	})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
