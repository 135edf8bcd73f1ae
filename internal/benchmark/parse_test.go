package main

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWrkReports(t *testing.T) {
	const told = "Running 60m test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  3 requests in 1.00s, 6KB read\nRequests/sec: 3.00\n" +
		"measured requests=3 bytes=6144 time=1000000 p50=250 p99=1500 connect=0 read=0 write=0 timeout=0 status=0\n"
	want := measured{requests: 3, bytes: 6144, time: time.Second, p50: 250 * time.Microsecond, p99: 1500 * time.Microsecond}
	failed := want
	failed.failures = "read=2 status=1"
	for _, c := range []struct {
		name, text string
		want       measured
		fails      bool
	}{
		{name: "all is well", text: told, want: want},
		{name: "some fail", text: strings.NewReplacer("read=0", "read=2", "status=0", "status=1").Replace(told), want: failed},
		{name: "cut off", text: told[:40], fails: true},
		{name: "no numbers", text: strings.Replace(told, "p50=250", "p50=nan", 1), fails: true},
		{name: "unable to connect", text: "unable to connect to 127.0.0.1:1 Connection refused\n", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseMeasured(c.text)
			if (err != nil) != c.fails || got != c.want {
				t.Errorf("parseMeasured = %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestABenchmarkReports(t *testing.T) {
	const told = "goos: linux\nBenchmarkGrowth-2   \t    1430\t    834875 ns/op\t       405.0 ns/of-1000\t         0.9425 ratio\nPASS\n"
	if got, err := parseMetric(told, "ratio"); err != nil || got != 0.9425 {
		t.Errorf("parseMetric = %v, %v", got, err)
	}
	for _, wrong := range []string{"", "PASS\n", "ratio", "a ratio"} {
		if got, err := parseMetric(wrong, "ratio"); err == nil {
			t.Errorf("parseMetric(%q) = %v, want an error", wrong, got)
		}
	}
}

func TestProcessStat(t *testing.T) {
	const line = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 500 0 0 0 230 70 9 9 20 0 12 0 1000 1000 100 18446744073709551615\n"
	got, err := parseStat(line)
	if want := (spent{pid: 4711, parent: 1, ticks: 300}); err != nil || got != want {
		t.Errorf("parseStat = %+v, %v; want %+v", got, err, want)
	}
	for _, wrong := range []string{"", "4711 (a) S 1", "x (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13", strings.Replace(line, "230", "x", 1)} {
		if got, err := parseStat(wrong); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", wrong, got)
		}
	}
}

func TestAServerIsAllItsProcesses(t *testing.T) {
	all := []spent{{pid: 1, ticks: 1000}, {pid: 10, parent: 1, ticks: 1}, {pid: 11, parent: 10, ticks: 20}, {pid: 12, parent: 11, ticks: 300}, {pid: 13, parent: 1, ticks: 4000}}
	if got := family(all, 10); got != 321 {
		t.Errorf("family = %d, want 321: it, its child and grandchild, not its neighbour", got)
	}
}

func TestProcessStatus(t *testing.T) {
	const text = "Name:\tweir\nVmPeak:\t  900000 kB\nVmRSS:\t   34816 kB\nSigCgt:\t0000000000000002\n"
	if got, err := parseRSS(text); err != nil || got != 34816<<10 {
		t.Errorf("parseRSS = %d, %v; want %d", got, err, 34816<<10)
	}
	if got, err := parseRSS("Name:\tzombie\n"); err == nil {
		t.Errorf("parseRSS of a process without memory = %d, want an error", got)
	}
	if !parseCatches(text, syscall.SIGINT) || parseCatches(text, syscall.SIGTERM) || parseCatches("Name:\tzombie\n", syscall.SIGINT) {
		t.Error("SIGINT alone is caught by the process with SigCgt 2")
	}
}

func TestMedians(t *testing.T) {
	rate := func(m sample) float64 { return m.rate }
	of := func(rates ...float64) (samples []sample) {
		for _, r := range rates {
			samples = append(samples, sample{rate: r})
		}
		return samples
	}
	if got := median(of(5, 100, 1), rate); got != 5 {
		t.Errorf("median of three = %v, want 5", got)
	}
	if got := median(of(4, 1, 3, 100), rate); got != 3.5 {
		t.Errorf("median of four = %v, want 3.5", got)
	}
	// A round in which the machine was slow is slow for both.
	if got := paired(of(90, 9, 80), of(100, 10, 100), rate); math.Abs(got-0.9) > 1e-9 {
		t.Errorf("paired = %v, want 0.9", got)
	}
}

// TestWhatIsNotMeasured makes sure that a run whose requests were not what the column is
// about fails.
func TestWhatIsNotMeasured(t *testing.T) {
	kept, conditional, passed := column{path: small, kept: true}, column{path: small, kept: true, conditional: true}, column{path: passing}
	for _, c := range []struct {
		name    string
		column  column
		m       measured
		reached int64
		fails   bool
	}{
		{"hits", kept, measured{requests: 10_000, bytes: 10_000 * 2500}, 0, false},
		{"hits, and some errors", kept, measured{requests: 10_000, bytes: 10_000 * 2500, failures: "status=1"}, 0, true},
		{"hits that were none", kept, measured{requests: 10_000, bytes: 10_000 * 2500}, 5_000, true},
		{"hits without bodies", kept, measured{requests: 10_000, bytes: 10_000 * 500}, 0, true},
		{"not modified", conditional, measured{requests: 10_000, bytes: 10_000 * 500}, 0, false},
		{"not modified, with bodies", conditional, measured{requests: 10_000, bytes: 10_000 * 2500}, 0, true},
		{"passed through", passed, measured{requests: 10_000, bytes: 10_000 * 2500}, 10_010, false},
		{"passed through, but from a cache", passed, measured{requests: 10_000, bytes: 10_000 * 2500}, 9_000, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.column.check(c.m, c.reached); (err != nil) != c.fails {
				t.Errorf("check = %v", err)
			}
		})
	}
}

func TestFiguresGoBetweenTheMarks(t *testing.T) {
	const page = "# Title\n\n" + begin + "old\n" + end + "\nMore.\n"
	got, err := insert([]byte(page), "new\n\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("# Title\n\n"+begin+"\nnew\n\n"+end+"\nMore.\n", string(got)); diff != "" {
		t.Error(diff)
	}
	again, err := insert(got, "new\n\n")
	if err != nil || string(again) != string(got) {
		t.Errorf("the same figures again make another page: %v", cmp.Diff(string(got), string(again)))
	}
	for _, wrong := range []string{"# Title\n", "# Title\n" + begin, "# Title\n" + end} {
		if _, err := insert([]byte(wrong), "new\n"); err == nil {
			t.Errorf("%q was written to, without both marks", wrong)
		}
	}
}

func TestWhatIsMadeOfTheFigures(t *testing.T) {
	at := func(cpu float64) []sample { return []sample{{cpu: cpu}} }
	got := append(derived(results{{hits, weir}: at(4), {hits, varnish}: at(2)}),
		addedFigures(250*time.Microsecond, 290*time.Microsecond, 390*time.Microsecond, 470*time.Microsecond)...)
	var values []string
	for _, f := range got {
		values = append(values, f.value)
	}
	if diff := cmp.Diff([]string{"0.50", "40 µs to 250", "220 µs; one call to Redis adds 140 µs"}, values); diff != "" {
		t.Error(diff)
	}
	if got := derived(results{}); got != nil {
		t.Errorf("of nothing something is told: %v", got)
	}
}
