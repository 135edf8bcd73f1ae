package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// soakReport is what is seen in a soak.
type soakReport struct {
	wrong atomic.Int64 // answers that were not the caller's own

	mu       sync.Mutex
	requests map[string]map[string]int // by kind and how they ended
	faults   map[string]int
	latest   string // fault
	longest  time.Duration
	lives    []*life // the latest of each replica after those before it
	seen     judgement
	// Until unknown, requests may have been on their way when the API began to limit their
	// caller; underWay were.
	unknown  time.Time
	underWay int
	permits  int // that have not come back
	rests    [2][]atRest
}

// life is that of one process of a replica.
type life struct {
	replica, pid int
	over         bool
	began        time.Time
	samples      []weight
}

// weight is how much memory a process has, so long after its start.
type weight struct{ minutes, mib float64 }

// atRest is what a replica holds while nothing is asked of it.
type atRest struct{ goroutines, descriptors int }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (p *soakReport) begins(replica, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lives {
		l.over = l.over || l.replica == replica
	}
	p.lives = append(p.lives, &life{replica: replica, pid: pid, began: time.Now()})
}

func (p *soakReport) ended(kind, how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requests == nil {
		p.requests = map[string]map[string]int{}
	}
	if p.requests[kind] == nil {
		p.requests[kind] = map[string]int{}
	}
	p.requests[kind][how]++
}

func (p *soakReport) happens(fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults == nil {
		p.faults = map[string]int{}
	}
	p.faults[fault]++
	p.latest = fault
}

func (p *soakReport) recovers(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.longest = max(p.longest, took)
}

// watch looks once a second.
func (s *soak) watch(ctx context.Context) {
	for pass(ctx, time.Second); ctx.Err() == nil; pass(ctx, time.Second) {
		s.look("meanwhile")
		s.report.weigh()
	}
}

// look asks the service whether a limit was broken since the last time.
func (s *soak) look(when string) {
	v, err := s.judgement()
	if err != nil {
		s.Errorf("the service: %v", err)
		return
	}
	s.report.mu.Lock()
	defer s.report.mu.Unlock()
	told := v.SentWhileLimited - s.report.seen.SentWhileLimited
	if time.Now().Before(s.report.unknown) && told <= mostUnderWay {
		s.report.underWay += told
		told = 0
	}
	if v.Violations > s.report.seen.Violations || told > 0 {
		s.Errorf("%s, the latest fault %q: %d violations, %d sent while limited: %v", when, s.report.latest, v.Violations, v.SentWhileLimited, v.ByLimit)
	}
	s.report.seen = v
}

// mostUnderWay is how many requests may be on their way, within a second, when the API
// limits callers for no reason: who sends two at once hears of it too late.
const mostUnderWay = 5

// limits notes that the API may limit callers for no reason for so long. A cool-down
// outlasts that: in the rest of it nothing may be sent.
func (p *soakReport) limits(long time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unknown = time.Now().Add(long)
}

// weigh notes the memory of each process that lives.
func (p *soakReport) weigh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lives {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", l.pid))
		if fields := strings.Fields(string(text)); err == nil && !l.over && len(fields) > 1 {
			pages, _ := strconv.Atoi(fields[1])
			if pages > 0 { // it has not just been killed
				l.samples = append(l.samples, weight{time.Since(l.began).Minutes(), float64(pages*os.Getpagesize()) / (1 << 20)})
			}
		}
	}
}

// slope fits a line to the second half of a life, and returns what it begins and ends
// with, in MiB, and how much of it a minute adds, in percent.
func (l *life) slope() (from, to, percent float64) {
	half := l.samples[len(l.samples)/2:]
	n := float64(len(half))
	if n < 2 {
		return 0, 0, 0
	}
	var x, y, xx, xy float64
	for _, s := range half {
		x, y, xx, xy = x+s.minutes, y+s.mib, xx+s.minutes*s.minutes, xy+s.minutes*s.mib
	}
	rise := (n*xy - x*y) / (n*xx - x*x)
	at := func(minutes float64) float64 { return y/n + rise*(minutes-x/n) }
	return at(half[0].minutes), at(half[len(half)-1].minutes), 100 * rise / (y / n)
}

// atRest ends the connections that lie idle, and counts what is left at each replica.
func (s *soak) atRest() (rests []atRest) {
	s.upstream.Break()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	pass(s.Context(), time.Second)
	for i, r := range s.replicas {
		_, metrics := s.get(s.Context(), "http://"+r.admin+"/metrics")
		found := regexp.MustCompile(`(?m)^go_goroutine_count\S* (\d+)$`).FindStringSubmatch(metrics)
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.process.Process.Pid))
		if err != nil || found == nil {
			s.Fatalf("replica %d: %v, %v", i, err, found)
		}
		n, _ := strconv.Atoi(found[1])
		rests = append(rests, atRest{n, len(open)})
	}
	return rests
}

// get asks without keeping the connection.
func (s *soak) get(ctx context.Context, url string) (status int, body string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req := s.request(ctx, http.MethodGet, url, "tok-owner", nil)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// more is how many more goroutines or descriptors there may be at rest than before: the
// pools of connections to Redis, two of ten for each processor, have been filled.
func more() int { return 20 + 20*runtime.GOMAXPROCS(0) }

// settle waits until what was in use has come back: permits of requests whose replica was
// killed do when their leases end, so a soak of some seconds does not wait for them.
// Memory is judged when there was time to warm up.
func (s *soak) settle(before []atRest) {
	s.report.rests = [2][]atRest{before, before}
	if s.long < time.Minute {
		return
	}
	for ended := time.Now(); ; pass(s.Context(), time.Second) {
		if s.report.permits = s.permits(); s.report.permits == 0 {
			s.Logf("all permits had come back after %v", time.Since(ended).Round(time.Second))
			break
		}
		if time.Since(ended) > 45*time.Second {
			s.Errorf("%d permits have not come back", s.report.permits)
			break
		}
	}
	after := s.atRest()
	for i, r := range after {
		if b := before[i]; r.goroutines > b.goroutines+more() || r.descriptors > b.descriptors+more() {
			s.Errorf("replica %d at rest: %+v before, %+v after", i, b, r)
		}
	}
	s.report.rests[1] = after
	for _, l := range s.report.lives {
		if _, _, percent := l.slope(); s.mayJudge(l) && percent > 1 {
			s.Errorf("replica %d grows by %.2f %% a minute", l.replica, percent)
		}
	}
}

// mayJudge reports whether a life was long enough to say something of its memory.
func (s *soak) mayJudge(l *life) bool {
	return len(l.samples) > 0 && l.samples[len(l.samples)-1].minutes >= max(3, s.long.Minutes()/2)
}

// permits is how many of them replicas know to be in use.
func (s *soak) permits() (n int) {
	for _, r := range s.replicas {
		l, err := (&adminClient{http.DefaultTransport, "http://" + r.admin, ""}).accounts(s.Context())
		if err != nil || len(l.accounts) == 0 {
			return -1
		}
		for _, a := range l.accounts {
			n += a.InUse
		}
	}
	return n
}

// tell is the report.
func (s *soak) tell() string {
	p := &s.report
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(format string, values ...any) { _, _ = fmt.Fprintf(w, format+"\n", values...) }
	line("a soak of %v from seed %d", s.long, s.seed)
	ends := []string{"answered", "refused", "4xx", "5xx", "broken", "left"}
	line("requests\t%s", strings.Join(ends, "\t"))
	all := map[string]int{}
	row := func(kind string, counts map[string]int) {
		cells := []string{kind}
		for _, end := range ends {
			cells = append(cells, strconv.Itoa(counts[end]))
			all[end] += counts[end]
		}
		line("%s", strings.Join(cells, "\t"))
	}
	for _, kind := range sortedKeys(p.requests) {
		row(kind, p.requests[kind])
	}
	row("all", maps.Clone(all))
	for _, fault := range sortedKeys(p.faults) {
		line("fault: %s\t%d", fault, p.faults[fault])
	}
	line("longest until all was well after a fault\t%v", p.longest.Round(time.Millisecond))
	line("violations\t%d", p.seen.Violations)
	line("sent while limited\t%d, and %d on their way when the limit was told", p.seen.SentWhileLimited-p.underWay, p.underWay)
	line("wrong bodies\t%d", p.wrong.Load())
	if s.long < time.Minute {
		line("permits, memory, goroutines, descriptors\tneed a soak of a minute and more")
		_ = w.Flush()
		return b.String()
	}
	line("permits left\t%d", p.permits)
	for i := range s.replicas {
		line("replica %d at rest\tgoroutines %d, then %d\tdescriptors %d, then %d", i,
			p.rests[0][i].goroutines, p.rests[1][i].goroutines, p.rests[0][i].descriptors, p.rests[1][i].descriptors)
	}
	slices.SortStableFunc(p.lives, func(a, b *life) int { return cmp.Compare(a.replica, b.replica) })
	for _, l := range p.lives {
		if from, to, percent := l.slope(); len(l.samples) > 1 {
			line("replica %d, %.1f min\tRSS %.1f MiB, then %.1f\t%+.2f %% a minute", l.replica, l.samples[len(l.samples)-1].minutes, from, to, percent)
		}
	}
	_ = w.Flush()
	return "\n" + b.String()
}
