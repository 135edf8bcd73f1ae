package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// observed is an observer whose lines a test reads.
type observed struct {
	*Observer
	telemetry *Telemetry
	out       testservers.Output
	next      []string // see passed
	ending    sync.Once
}

// end closes the observer.
func (o *observed) end() { o.ending.Do(o.Close) }

// observing runs a test with virtual time. The observer writes to the output, or to out if it is not nil.
func observing(t *testing.T, c Config, out io.Writer, test func(*observed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := &observed{}
		c.ServiceName, c.Log = "weir", out
		if out == nil {
			c.Log = &o.out
		}
		o.telemetry = must(Open(c))
		o.Observer = o.telemetry.NewObserver(func(r *record.Record) { o.next = append(o.next, r.ID) })
		defer func() {
			o.end()
			o.telemetry.Close()
		}()
		test(o)
	})
}

// hit returns the record of a hit.
func hit(id any) *record.Record {
	return &record.Record{
		ID: fmt.Sprint(id), Start: time.Now(), Request: record.Request{Method: "GET", Route: "/emojis", Operation: "emojis/get"}, Status: 200, Bytes: 100, Elapsed: time.Millisecond,
		Outcome: record.OutcomeHit, Cache: record.CacheStatus{Hit: true},
	}
}

// passed returns the IDs of the records that the observer has passed on, with all records in its queue.
func (o *observed) passed() []string {
	o.Flush()
	return o.next
}

func (o *observed) lines() int { return strings.Count(o.out.String(), "\n") }

func (o *observed) metric(name string) string {
	for line := range strings.Lines(o.telemetry.scrape(false)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

const (
	countedHits    = `weir_requests_total{weir_cache="hit",weir_client="pass-through",weir_operation="emojis/get"}`
	droppedLines   = `weir_observer_dropped_total{weir_reason="line"}`
	droppedRecords = `weir_observer_dropped_total{weir_reason="record"}`
)

func TestRecordIsWrittenWithin100Milliseconds(t *testing.T) {
	observing(t, Config{}, nil, func(o *observed) {
		for i := range 3 {
			o.Observe(hit(i))
			time.Sleep(time.Millisecond)
			equal(t, "lines after a millisecond", o.lines(), 3*i)
			time.Sleep(98 * time.Millisecond)
			equal(t, "lines after 99 ms", o.lines(), 3*i+1)
			o.Observe(hit(i))
			o.Observe(hit(i))
			time.Sleep(99 * time.Millisecond)
			equal(t, "lines after further 99 ms", o.lines(), 3*(i+1))
		}
		equal(t, "counted requests", o.metric(countedHits), "9")
		equal(t, "records passed on", len(o.passed()), 9)
	})
}

func TestLineOfAFailureIsWrittenAtOnce(t *testing.T) {
	for name, change := range map[string]func(*record.Record){
		"upstream error": func(r *record.Record) { r.Status = 502 },
		"refusal":        func(r *record.Record) { r.Status, r.Outcome = 429, record.OutcomeRefused },
		"limit error":    func(r *record.Record) { r.Limited = policy.LimitPrimary },
		"error":          func(r *record.Record) { r.Error = "no route to host" },
		"strange number": func(r *record.Record) { r.OutsideRange = "date" },
	} {
		observing(t, Config{}, nil, func(o *observed) {
			o.Observe(hit(1))
			failed := hit(2)
			change(failed)
			o.Observe(failed)
			synctest.Wait()
			equal(t, "lines after a failure: "+name, o.lines(), 2) // in their order, so also the earlier one
			for i := range 1000 {
				failed := hit(i)
				change(failed)
				o.Observe(failed)
			}
			time.Sleep(flushPause)
			synctest.Wait()
			equal(t, "lines after a flood of failures: "+name, o.lines(), 1002)
		})
	}
}

func TestBusyObserverWritesBeforeTheDelayEnds(t *testing.T) {
	observing(t, Config{}, nil, func(o *observed) {
		for i := range maxBatch {
			o.Observe(hit(i))
		}
		synctest.Wait()
		equal(t, "lines", o.lines(), maxBatch)
	})
}

func TestCloseWritesAllLines(t *testing.T) {
	observing(t, Config{}, nil, func(o *observed) {
		for i := range maxBatch - 1 {
			o.Observe(hit(i))
		}
		o.end()
		equal(t, "lines at the end", o.lines(), maxBatch-1)
		o.Observe(hit("late")) // by a request that outlives the drain
		equal(t, "lines after a late record", o.lines(), maxBatch)
	})
}

// stuckWriter blocks each write until it is released.
type stuckWriter struct {
	released chan struct{}
	out      testservers.Output
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.released
	return w.out.Write(p)
}

func TestSlowWriterDelaysNoClient(t *testing.T) {
	w := &stuckWriter{}
	const bursts = 300
	observing(t, Config{}, w, func(o *observed) {
		w.released = make(chan struct{})
		began := time.Now()
		var requests time.Duration
		for range bursts {
			sent := time.Now()
			for i := range maxBatch - 1 { // below the bound of the queue
				o.Observe(hit(i))
			}
			requests += time.Since(sent)
			time.Sleep(100 * time.Millisecond)
		}
		equal(t, "time in Observe", requests, 0)
		equal(t, "counted requests", o.metric(countedHits), fmt.Sprint(bursts*(maxBatch-1)))
		equal(t, "dropped records", o.metric(droppedRecords), "0")
		close(w.released)
		time.Sleep(100 * time.Millisecond)
		written := strings.Count(w.out.String(), "\n")
		equal(t, "lost lines", o.metric(droppedLines), fmt.Sprint(bursts*(maxBatch-1)-written))
		size := len(w.out.String())
		failIf(t, size < maxUnwritten-1000 || size > 2*maxUnwritten, "%d bytes were kept in %v", size, time.Since(began))
	})
}

func TestCloseEndsWithABlockedWriter(t *testing.T) {
	w := &stuckWriter{}
	var began time.Time
	synctest.Test(t, func(t *testing.T) {
		w.released = make(chan struct{})
		telemetry := must(Open(Config{ServiceName: "weir", Log: w}))
		defer telemetry.Close()
		o := telemetry.NewObserver(func(*record.Record) {})
		o.Observe(hit(1))
		began = time.Now()
		o.Close()
		equal(t, "time to close", time.Since(began), closeTimeout)
		close(w.released) // ends the goroutine, which the end of a process would also end
	})
}

func TestFullQueueDropsAndCountsRecords(t *testing.T) {
	observing(t, Config{}, nil, func(o *observed) {
		o.recording.Lock() // as a busy machine would delay the goroutine
		for i := range maxQueued + 2 {
			o.Observe(hit(i))
		}
		o.recording.Unlock()
		o.Flush()
		equal(t, "records", len(o.passed()), maxQueued)
		equal(t, "last record", o.passed()[maxQueued-1], fmt.Sprint(maxQueued-1))
		equal(t, "counted requests", o.metric(countedHits), fmt.Sprint(maxQueued))
		equal(t, "dropped records", o.metric(droppedRecords), "2")
	})
}

func TestConcurrentRequestsLoseNothing(t *testing.T) {
	var out testservers.Output
	telemetry := must(Open(Config{ServiceName: "weir", Log: &out}))
	defer telemetry.Close()
	seen := map[string]int{}
	o := telemetry.NewObserver(func(r *record.Record) { seen[r.ID]++ })
	var clients sync.WaitGroup
	const each = 500 // together below the bound of the queue
	for c := range 8 {
		clients.Go(func() {
			for i := range each {
				o.Observe(hit(fmt.Sprint(c, "-", i)))
				if i%100 == 0 {
					o.Flush()
				}
			}
		})
	}
	clients.Wait()
	o.Close()
	equal(t, "records", len(seen), 8*each)
	equal(t, "lines", strings.Count(out.String(), "\n"), 8*each)
	assertContains(t, telemetry.scrape(false), countedHits+fmt.Sprint(" ", 8*each))
}

func TestAccessLogSettingSelectsRequests(t *testing.T) {
	broken := hit("error")
	broken.Error = "connection reset"
	records := []*record.Record{hit("hit"), {ID: "missing", Status: 404, Outcome: record.OutcomeMiss}, {ID: "failed", Status: 503}, {ID: "refused", Status: 404, Outcome: record.OutcomeRefused}, broken}
	for setting, want := range map[string]string{
		"":              "hit missing failed refused error",
		AccessLogAll:    "hit missing failed refused error",
		AccessLogErrors: "failed refused error",
		AccessLogOff:    "",
	} {
		observing(t, Config{AccessLog: setting}, nil, func(o *observed) {
			for _, r := range records {
				o.Observe(r)
			}
			time.Sleep(100 * time.Millisecond)
			equal(t, "lines with "+setting, strings.Join(groups(` request=(\S+)`, o.out.String()), " "), want)
			equal(t, "records passed on with "+setting, len(o.passed()), len(records))
		})
	}
}

// completeRecord returns a record whose line has all names.
func completeRecord() *record.Record {
	r := fullRecord()
	r.ID, r.Account, r.Path, r.Target, r.Bytes, r.Waited = "id", "octo-bot", "/repos/acme/widgets", "ab12", 7, 2*time.Second
	r.Background, r.Tag, r.Limited, r.LimitAnswer, r.OutsideRange = true, "nightly", policy.LimitPrimary, "primary", "date"
	r.Cache, r.Error = record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304, Stored: true}, "read \"x\":\nconnection reset\x1b"
	return r
}

// Both formats have the same names and values, which the documentation lists.
func TestFormatsHaveTheSameDocumentedNames(t *testing.T) {
	lines := map[string]string{}
	for _, format := range []string{LogFormatText, LogFormatJSON} {
		observing(t, Config{LogFormat: format}, nil, func(o *observed) {
			o.telemetry.Log().Info("gateway started", "address", ":8080")
			o.Observe(completeRecord())
			time.Sleep(100 * time.Millisecond)
			list := strings.SplitAfter(o.out.String(), "\n")
			stopIf(t, len(list) != 3 || !strings.Contains(list[0], "gateway started"), "%s: got %q", format, list)
			lines[format] = list[1]
		})
	}
	var object map[string]any
	noError(t, json.Unmarshal([]byte(lines[LogFormatJSON]), &object))
	inText := map[string]string{}
	for _, m := range textFields(lines[LogFormatText]) {
		inText[m[0]] = m[1]
	}
	names := slices.Sorted(maps.Keys(object))
	equal(t, "names in text", slices.Sorted(maps.Keys(inText)), names)
	_, section, _ := strings.Cut(read(t, "docs/observability.md"), "\n## Logs\n")
	equal(t, "documented names", codes(strings.Join(groups("(?m)^\\| (`[^|]+) \\|", section), " ")), names)
	for name, want := range map[string][2]string{
		"msg": {"request", "request"}, "status": {"200", "200"}, "elapsed": {"1s", "1e+09"}, "waited": {"2s", "2e+09"}, "background": {"true", "true"},
		"cache": {"weir; fwd=stale; fwd-status=304; stored", "weir; fwd=stale; fwd-status=304; stored"}, "limited": {"primary", "primary"},
		"error": {`read "x":` + "\nconnection reset\x1b", `read "x":` + "\nconnection reset\x1b"}, "trace_id": {"0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319c"},
	} {
		equal(t, name, [2]string{inText[name], fmt.Sprint(object[name])}, want)
	}
}

// textFields returns the names and values of a line of the text format.
func textFields(line string) (list [][2]string) {
	for line = strings.TrimSpace(line); line != ""; {
		name, rest, _ := strings.Cut(line, "=")
		value, after, _ := strings.Cut(rest, " ")
		if strings.HasPrefix(rest, `"`) {
			quoted := must(strconv.QuotedPrefix(rest))
			value, after = must(strconv.Unquote(quoted)), strings.TrimPrefix(rest[len(quoted):], " ")
		}
		list = append(list, [2]string{name, value})
		line = after
	}
	return list
}

// The time of a line is the end of its request, whenever the line is written.
func TestLineHasTheTimeOfTheEndOfItsRequest(t *testing.T) {
	observing(t, Config{LogFormat: LogFormatJSON}, nil, func(o *observed) {
		r := hit(1)
		r.Elapsed = 3 * time.Second
		o.Observe(r)
		time.Sleep(100 * time.Millisecond)
		var line struct{ Time time.Time }
		noError(t, json.Unmarshal([]byte(o.out.String()), &line))
		equal(t, "time", line.Time.Sub(r.Start), 3*time.Second)
	})
}

func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	observing(t, Config{}, failingWriter{}, func(o *observed) {
		o.Observe(hit(1))
		o.Observe(hit(2))
		time.Sleep(100 * time.Millisecond)
		equal(t, "lost lines", o.metric(droppedLines), "2")
	})
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAccessLinesAreExported(t *testing.T) {
	received := testservers.StartOTLP(t)
	w := must(Open(Config{ServiceName: "weir", Log: &bytes.Buffer{}}))
	w.record(fullRecord())
	w.Close()
	sent := received.Logs()
	failIf(t, len(sent) != 1 || sent[0].GetBody().GetStringValue() != "request" || fmt.Sprintf("%x", sent[0].GetTraceId()) != fullRecord().Trace ||
		testservers.Attributes(sent[0].GetAttributes())["route"] != "/repos/{owner}/{repo}", "exported %v", sent)
}

func TestAttributeSetsAreBounded(t *testing.T) {
	w := opened(t)
	for i := range 3 * maxSeries {
		w.requests.add(t.Context(), 1, fmt.Sprint(i))
		n := len(w.requests.series.options)
		stopIf(t, n > maxSeries, "%d attribute sets are kept", n)
	}
}

// BenchmarkObserver measures the work for each finished request.
func BenchmarkObserver(b *testing.B) {
	for _, format := range []string{LogFormatText, LogFormatJSON, "off"} {
		b.Run(format, func(b *testing.B) {
			c := Config{ServiceName: "weir", Log: io.Discard, LogFormat: format}
			if format == "off" {
				c.AccessLog = AccessLogOff
			}
			w := must(Open(c))
			defer w.Close()
			o := w.NewObserver(func(*record.Record) {})
			defer o.Close()
			r := hit(1)
			r.ID, r.Account, r.Path, r.Target = "KQ3JZ5V7T2N4X6B8", "0123456789abcdef0123456789abcdef", "/repos/acme/widgets/subscribers", "0123456789abcdef"
			r.Cache.TTL, r.Cache.HasTTL = 3599, true
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o.Observe(r)
				if i%maxBatch == 0 {
					o.Flush()
				}
			}
			o.Flush()
		})
	}
}
