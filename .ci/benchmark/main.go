// Command benchmark measures bin/weir beside a bare net/http handler, a bare httputil.ReverseProxy, nginx, Varnish and
// HAProxy. It prints a Markdown table with the requests per second and the CPU time per request, and a table with the CPU
// time of each part of the path, from a CPU profile of hits and one of forwarded requests. `make bench` runs it, and -write
// puts the tables into docs/internals/performance.md. With -base FILE, it also measures a second weir binary, to compare two builds
// in pairs.
//
// Each server is a separate process on 127.0.0.1, pinned to the first core with one worker. Load (wrk), upstream and
// Redis run on the other cores. Rounds are interleaved and rotate the order of the servers. A ratio is the median of
// the ratios of all rounds.
//
// A run fails if a request fails, if a hit reaches the upstream, or if an uncacheable request does not reach the
// upstream.
package main

import (
	"cmp"
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

//go:embed conf
var conf embed.FS

// scenario is one kind of request that all its servers answer.
type scenario struct {
	title       string // without the connections
	path        string
	connections int
	conditional bool
	distinct    bool     // each request has its own URL
	hit         bool     // answered from the cache; otherwise each request reaches the upstream
	servers     []string // the first server is the baseline
}

// These are the names of the servers in the tables.
const (
	bareHandler = "bare net/http handler"
	bareProxy   = "bare ReverseProxy"
	redisProxy  = "ReverseProxy + one Redis call"
	weirMemory  = "Weir"
	weirRedis   = "Weir, Redis"
	baseMemory  = "base"
	baseRedis   = "base, Redis"
)

func scenarios() []scenario {
	cached := []string{bareHandler, weirMemory, weirRedis, baseMemory, baseRedis, "nginx", "varnish", "haproxy"}
	forwarded := []string{bareProxy, weirMemory, baseMemory, "nginx", "varnish", "haproxy"}
	overRedis := []string{redisProxy, weirRedis, baseRedis}
	return []scenario{
		{title: "Hit, 2 KB", path: smallPath, connections: 64, hit: true, servers: cached},
		{title: "Conditional hit (304)", path: smallPath, connections: 64, conditional: true, hit: true, servers: cached},
		{title: "Hit, 64 KB", path: largePath, connections: 64, hit: true, servers: cached},
		{title: "Hit, 2 KB", path: smallPath, connections: 1, hit: true, servers: cached},
		{title: "Pass-through, known route", path: knownPath, connections: 64, servers: forwarded},
		{title: "Pass-through, unknown route", path: unknownPath, connections: 64, servers: forwarded},
		{title: "Pass-through, distinct URLs", path: knownPath, connections: 64, distinct: true, servers: forwarded},
		{title: "Stored miss, distinct URLs", path: smallPath, connections: 64, distinct: true, servers: forwarded},
		{title: "Pass-through, known route", path: knownPath, connections: 1, servers: forwarded},
		{title: "Pass-through with Redis, known route", path: knownPath, connections: 64, servers: overRedis},
		{title: "Pass-through with Redis, unknown route", path: unknownPath, connections: 64, servers: overRedis},
		{title: "Pass-through with Redis, distinct URLs", path: knownPath, connections: 64, distinct: true, servers: overRedis},
		{title: "Stored miss with Redis, distinct URLs", path: smallPath, connections: 64, distinct: true, servers: overRedis},
	}
}

// figures is the result of one server in one round.
type figures struct {
	requests float64
	rate     float64 // requests per second
	cpu      float64 // CPU time of the process per request in microseconds, user and system
	p50, p99 time.Duration
}

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		exit(serve(os.Args[1], os.Args[2:]))
	}
	var b bench
	flag.StringVar(&b.weir, "weir", "bin/weir", "the binary to measure")
	flag.StringVar(&b.base, "base", "", "a second weir binary to measure in pairs with the first")
	flag.IntVar(&b.rounds, "rounds", 5, "number of rounds")
	flag.IntVar(&b.seconds, "seconds", 3, "seconds of load for each server in each round")
	only := flag.String("only", ".", "regular expression of the scenarios to measure")
	parts := flag.Bool("parts", true, "profile the working tree, and print the CPU time of each part of the path")
	peers := flag.Bool("peers", true, "measure nginx, Varnish and HAProxy if they are installed")
	write := flag.String("write", "", "Markdown file whose figures between the marks are replaced")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(b.run(ctx, regexp.MustCompile(*only), *peers, *parts, *write))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bench holds the settings of a run and the processes that the run started.
type bench struct {
	weir, base      string
	rounds, seconds int

	dir             string
	upstream, redis string // addresses
	servers         map[string]*process
	all             []*process
}

type process struct {
	address string
	profile string // file of the CPU profile, if the server writes one
	cmd     *exec.Cmd
}

func (b *bench) run(ctx context.Context, only *regexp.Regexp, peers, parts bool, write string) (err error) {
	if b.dir, err = os.MkdirTemp("", "weir-benchmark-"); err != nil {
		return err
	}
	defer func() {
		for _, p := range b.all {
			_ = p.cmd.Process.Signal(syscall.SIGTERM) // a killed nginx leaves its workers
			kill := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
			_ = p.cmd.Wait()
			kill.Stop()
		}
		_ = os.RemoveAll(b.dir)
	}()
	if err := os.Chmod(b.dir, 0o755); err != nil { // nginx's workers run as another user
		return err
	}
	if err := b.start(ctx, peers); err != nil {
		return err
	}
	var report strings.Builder
	fmt.Fprintf(&report, "%s, %d cores, %s; %d rounds of %d s each.\n\n", processor(), runtime.NumCPU(), runtime.Version(), b.rounds, b.seconds)
	report.WriteString(tableHead)
	for _, s := range scenarios() {
		if !only.MatchString(s.name()) {
			continue
		}
		s.servers = slices.DeleteFunc(s.servers, func(name string) bool { return b.servers[name] == nil })
		results, err := b.measure(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		report.WriteString(rows(s, results))
	}
	if parts {
		table, err := b.parts(ctx)
		if err != nil {
			return fmt.Errorf("parts: %w", err)
		}
		report.WriteString(table)
	}
	fmt.Print(report.String())
	if write == "" {
		return nil
	}
	text, err := os.ReadFile(write)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), beginMark)
	_, after, closed := strings.Cut(rest, endMark)
	if !found || !closed {
		return fmt.Errorf("write %s: the marks %q and %q are missing", write, beginMark, endMark)
	}
	return os.WriteFile(write, []byte(before+beginMark+"\n"+report.String()+"\n"+endMark+after), 0o644)
}

const beginMark, endMark = "<!-- begin figures -->\n", "<!-- end figures -->"

// start starts upstream, Redis and all servers.
func (b *bench) start(ctx context.Context, peers bool) error {
	b.servers = map[string]*process{}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	upstream, err := b.spawn(ctx, loadCores(), self, "upstream", "{{.Address}}")
	if err != nil {
		return err
	}
	b.upstream = upstream.address
	redis, err := b.spawn(ctx, loadCores(), "redis-server", "--bind", "127.0.0.1", "--port", "{{.Port}}", "--save", "", "--appendonly", "no", "--dir", b.dir)
	if err != nil {
		return err
	}
	b.redis = redis.address
	server := func(name string, command ...string) {
		if err == nil {
			b.servers[name], err = b.spawn(ctx, "0", command...)
		}
	}
	server(bareProxy, self, "reverseproxy", "{{.Address}}", b.upstream)
	server(redisProxy, self, "reverseproxy", "{{.Address}}", b.upstream, b.redis)
	server(weirMemory, b.weir, "serve", "--config", "{{.File \"weir.yaml\" \"memory:\"}}")
	server(weirRedis, b.weir, "serve", "--config", "{{.File \"weir.yaml\" \"redis://"+b.redis+"/0\"}}")
	if b.base != "" {
		server(baseMemory, b.base, "serve", "--config", "{{.File \"weir.yaml\" \"memory:\"}}")
		server(baseRedis, b.base, "serve", "--config", "{{.File \"weir.yaml\" \"redis://"+b.redis+"/1\"}}")
	}
	if peers && installed("nginx") {
		server("nginx", "nginx", "-c", "{{.File \"nginx.conf\"}}")
	}
	if peers && installed("varnishd") {
		server("varnish", "varnishd", "-F", "-j", "none", "-a", "{{.Address}}", "-f", "{{.File \"varnish.vcl\"}}", "-n", filepath.Join(b.dir, "varnish"), "-s", "malloc,256m", "-p", "thread_pools=1")
	}
	if peers && installed("haproxy") {
		server("haproxy", "haproxy", "-db", "-f", "{{.File \"haproxy.cfg\"}}")
	}
	if err != nil {
		return err
	}
	// The bare handler repeats the hits of Weir, header by header.
	hits := filepath.Join(b.dir, "hits.json")
	if err := record(b.servers[weirMemory].address, hits); err != nil {
		return err
	}
	server(bareHandler, self, "handler", "{{.Address}}", hits)
	return err
}

func installed(program string) bool { _, err := exec.LookPath(program); return err == nil }

// loadCores returns the list of all cores except the first.
func loadCores() string {
	if n := runtime.NumCPU(); n > 1 {
		return "1-" + strconv.Itoa(n-1)
	}
	return "0"
}

// place is the data of the templates in commands and configurations.
type place struct {
	b                  *bench
	Dir, Address, Port string
	Admin, Store       string
	Upstream           string
	UpstreamHost       string
	UpstreamPort       string
}

// File writes a configuration for a store and returns its path.
func (p place) File(name string, store ...string) (string, error) {
	p.Store = strings.Join(store, "")
	text, err := template.ParseFS(conf, "conf/"+name)
	if err != nil {
		return "", err
	}
	f, err := os.Create(filepath.Join(p.Dir, p.Port+"-"+name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), text.Execute(f, p)
}

// spawn starts a server on the given cores and waits until it accepts connections.
func (b *bench) spawn(ctx context.Context, cores string, command ...string) (*process, error) {
	p := place{b: b, Dir: b.dir, Upstream: b.upstream}
	for _, address := range []*string{&p.Address, &p.Admin} {
		var err error
		if *address, err = testservers.FindAddress(); err != nil {
			return nil, err
		}
	}
	_, p.Port, _ = net.SplitHostPort(p.Address)
	p.UpstreamHost, p.UpstreamPort, _ = net.SplitHostPort(b.upstream)
	args := []string{"-c", cores}
	for _, word := range command {
		t, err := template.New("").Parse(word)
		if err != nil {
			return nil, err
		}
		var out strings.Builder
		if err := t.Execute(&out, p); err != nil {
			return nil, err
		}
		args = append(args, out.String())
	}
	log, err := os.Create(filepath.Join(b.dir, p.Port+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "taskset", args...)
	cmd.Stdout, cmd.Stderr = log, log
	profile := filepath.Join(b.dir, p.Port+".profile")
	if cores == "0" {
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "WEIR_CPU_PROFILE="+profile)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	started := &process{p.Address, profile, cmd}
	b.all = append(b.all, started)
	for range 200 {
		c, err := net.Dial("tcp", p.Address)
		if err == nil {
			return started, c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	text, _ := os.ReadFile(log.Name())
	return nil, fmt.Errorf("start %s: no connection within 10 s: %s", command[0], text)
}

// measure returns the figures of all rounds by server. A first round warms up.
func (b *bench) measure(ctx context.Context, s scenario) (map[string][]figures, error) {
	results := map[string][]figures{}
	for round := range b.rounds + 1 {
		for i := range s.servers {
			name := s.servers[(i+round)%len(s.servers)]
			sent, seconds := s, b.seconds
			if round == 0 {
				sent.conditional, seconds = false, 1 // stores the response
			}
			f, err := b.load(ctx, sent, b.servers[name], seconds, round > 0)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if round > 0 {
				results[name] = append(results[name], f)
				fmt.Fprintf(os.Stderr, "round %d: %s: %s: %.0f/s, %.1f µs CPU\n", round, s.name(), name, f.rate, f.cpu)
			}
		}
	}
	return results, nil
}

// load runs wrk once. If judged is set, it checks that the requests reached the upstream, or did not, as the scenario
// requires.
func (b *bench) load(ctx context.Context, s scenario, p *process, seconds int, judged bool) (figures, error) {
	script := filepath.Join(b.dir, "report.lua")
	text, err := conf.ReadFile("conf/report.lua")
	if err == nil {
		err = os.WriteFile(script, text, 0o600)
	}
	if err != nil {
		return figures{}, err
	}
	args := []string{"-c", loadCores(), "wrk", "-t1", "-c", strconv.Itoa(s.connections), "-d", strconv.Itoa(seconds), "--timeout", "10s", "-s", script, "-H", "Authorization: " + token}
	if s.conditional {
		args = append(args, "-H", "If-None-Match: "+etag)
	}
	seenBefore, cpuBefore := b.seen(), cpuSeconds(p.cmd.Process.Pid)
	args = append(args, "http://"+p.address+s.path)
	if s.distinct {
		args = append(args, "--", fmt.Sprint(time.Now().UnixNano())) // URLs of different runs are different, too
	}
	out, err := exec.CommandContext(ctx, "taskset", args...).CombinedOutput()
	cpu, seen := cpuSeconds(p.cmd.Process.Pid)-cpuBefore, b.seen()-seenBefore
	if err != nil {
		return figures{}, fmt.Errorf("wrk: %w: %s", err, out)
	}
	n := map[string]float64{}
	_, line, _ := strings.Cut(string(out), "figures ")
	for _, field := range strings.Fields(line) {
		name, value, _ := strings.Cut(field, "=")
		n[name], _ = strconv.ParseFloat(value, 64)
	}
	requests := n["requests"]
	switch {
	case requests == 0 || n["failed"] > 0:
		return figures{}, fmt.Errorf("%.0f requests, %.0f failed: %s", requests, n["failed"], out)
	case s.hit && judged && seen > requests/1000:
		return figures{}, fmt.Errorf("%.0f of %.0f hits reached the upstream", seen, requests)
	case !s.hit && judged && seen < requests:
		return figures{}, fmt.Errorf("%.0f of %.0f requests reached the upstream", seen, requests)
	}
	return figures{
		requests: requests, rate: requests / n["time"] * 1e6, cpu: cpu / requests * 1e6,
		p50: time.Duration(n["p50"]) * time.Microsecond, p99: time.Duration(n["p99"]) * time.Microsecond,
	}, nil
}

// seen returns the number of requests that the upstream has answered.
func (b *bench) seen() float64 {
	resp, err := http.Get("http://" + b.upstream + seenPath)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	n, _ := strconv.ParseFloat(string(text), 64)
	return n
}

// cpuSeconds returns the CPU time of a process and of its children (proc_pid_stat(5)).
func cpuSeconds(pid int) float64 {
	total := 0.0
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, found := strings.Cut(string(text), ") "); found {
		fields := strings.Fields(rest)
		for _, ticks := range fields[11:13] {
			n, _ := strconv.ParseFloat(ticks, 64)
			total += n / 100
		}
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			total += cpuSeconds(n)
		}
	}
	return total
}

// name returns the title with the connections.
func (s scenario) name() string {
	if s.connections == 1 {
		return s.title + ", 1 connection"
	}
	return fmt.Sprintf("%s, %d connections", s.title, s.connections)
}

const tableHead = "| requests | server | requests/s | ratio | CPU per request | ratio | p50 | p99 | ratio |\n|---|---|---|---|---|---|---|---|---|\n"

// rows returns the medians of a scenario as rows of the table. The first server is the baseline of the ratios.
func rows(s scenario, results map[string][]figures) string {
	var out strings.Builder
	title, baseline := s.name(), results[s.servers[0]]
	rate := func(f figures) float64 { return f.rate }
	cpu := func(f figures) float64 { return f.cpu }
	p50 := func(f figures) float64 { return f.p50.Seconds() * 1000 }
	p99 := func(f figures) float64 { return f.p99.Seconds() * 1000 }
	for _, name := range s.servers {
		list := results[name]
		fmt.Fprintf(&out, "| %s | %s | %.0f | %.2f | %.1f µs | %.2f | %.2f ms | %.2f ms | %.2f |\n", title, name,
			median(list, rate), ratio(list, baseline, rate), median(list, cpu), ratio(list, baseline, cpu),
			median(list, p50), median(list, p99), ratio(list, baseline, p99))
		title = "" // once for each scenario
	}
	return out.String()
}

func median(list []figures, of func(figures) float64) float64 {
	var values []float64
	for _, f := range list {
		values = append(values, of(f))
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// ratio returns the median of the ratios of each round.
func ratio(list, baseline []figures, of func(figures) float64) float64 {
	i := -1
	return median(list, func(f figures) float64 { i++; return of(f) / of(baseline[i]) })
}

// processor returns the model name of the first core.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if _, name, found := strings.Cut(line, ": "); found && strings.HasPrefix(line, "model name") {
			return strings.TrimSpace(name)
		}
	}
	return cmp.Or(os.Getenv("PROCESSOR"), runtime.GOARCH)
}
