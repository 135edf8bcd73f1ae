package judge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// TestMain also is the command that TestRunScoresCommands starts.
func TestMain(m *testing.M) {
	if os.Getenv("WEIR_JUDGE_URL") != "" {
		os.Exit(create())
	}
	os.Exit(m.Run())
}

// creations is the number of tasks of kind create that the command sends: one more than the limit allows.
const creations = 26

// create sends tasks of kind create of the standard input one after another, and returns an exit code.
func create() int {
	lines := bufio.NewScanner(os.Stdin)
	for sent := 0; sent < creations && lines.Scan(); {
		words := strings.SplitN(lines.Text(), " ", 4)
		if words[0] != "create" {
			continue
		}
		sent++
		req, err := http.NewRequest(words[1], os.Getenv("WEIR_JUDGE_URL")+words[2], strings.NewReader(words[3]))
		if err != nil {
			return 1
		}
		req.Header.Set("Authorization", "Bearer "+os.Getenv("WEIR_JUDGE_TOKEN"))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 1
		}
		_ = resp.Body.Close()
	}
	return 0
}

func newUpstream(t *testing.T) *Upstream {
	u := testservers.Must(NewUpstream())
	t.Cleanup(u.Close)
	return u
}

// inRun calls work in virtual time with a client of a new upstream, and returns the score.
func inRun(t *testing.T, programs int, work func(ctx context.Context, client *http.Client)) (score Score) {
	synctest.Test(t, func(t *testing.T) {
		upstream := newUpstream(t)
		pipe := testservers.ListenPipe("judge.test:80")
		server := &http.Server{Handler: upstream}
		defer func() { _ = server.Close() }()
		go func() { _ = server.Serve(pipe) }()
		client := &http.Client{Transport: &http.Transport{DialContext: pipe.Dial, MaxIdleConnsPerHost: 100}}
		defer client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(t.Context(), Duration)
		defer cancel()
		began := time.Now()
		work(ctx, client)
		score = upstream.Score(programs, time.Since(began))
	})
	return score
}

func TestProgramsWithoutLimiterExceedLimits(t *testing.T) {
	load := func(programs int) (score Score, limitErrors int) {
		score = inRun(t, programs, func(ctx context.Context, client *http.Client) {
			limitErrors = testservers.Must(Load(ctx, client, "http://judge.test", programs))
		})
		return score, limitErrors
	}
	one, limitErrors := load(1)
	failIf(t, one.ByLimit["content"] == 0 || one.ByLimit["search"] == 0 || one.SentWhileLimited == 0, "score %+v, want violations of content and search, and requests sent while limited", one)
	failIf(t, one.Content.Share() != 100, "score %+v, want the content of three windows, because a cool-down ends after one window", one)
	sum := one.ByLimit["content"] + one.ByLimit["search"] + one.ByLimit["core"]
	failIf(t, one.Violations != sum, "%d violations, but %d of single limits: %v", one.Violations, sum, one.ByLimit)
	failIf(t, one.LimitErrors != limitErrors, "the upstream sent %d limit errors, but the client received %d", one.LimitErrors, limitErrors)
	three, _ := load(3)
	failIf(t, three.Violations <= one.Violations, "three programs have %+v, want more violations than one program (%d)", three, one.Violations)
}

// TestPacedProgramKeepsLimits runs two loops that have one request in progress: one for searches, and one for reads and
// paced creations. Both wait for the reset of an exhausted window.
func TestPacedProgramKeepsLimits(t *testing.T) {
	score := inRun(t, 1, func(ctx context.Context, client *http.Client) {
		queues := byKind(Tasks(0))
		send := func(kind string) {
			testservers.Sleep(ctx, time.Until(sendPaced(ctx, t, client, <-queues[kind])))
		}
		var searches sync.WaitGroup
		searches.Go(func() {
			for ctx.Err() == nil {
				send("search")
			}
		})
		for nextCreation := time.Now(); ctx.Err() == nil; send("read") {
			if !time.Now().Before(nextCreation) {
				nextCreation = time.Now().Add(window / 25)
				send("create")
			}
		}
		searches.Wait()
	})
	failIf(t, score.Violations+score.SentWhileLimited+score.LimitErrors > 0, "score %+v, want no violation", score)
	failIf(t, score.Seconds != 55 || score.Core.Share() < 95 || score.Search.Share() != 100 || score.Content.Share() < 70, "score %+v, want nearly all requests", score)
}

// sendPaced sends a task. It returns the time of the reset if the window is exhausted.
func sendPaced(ctx context.Context, t *testing.T, client *http.Client, task Task) (reset time.Time) {
	req, err := http.NewRequestWithContext(ctx, task.Method, "http://judge.test"+task.Path, strings.NewReader(task.Body))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+Token)
	resp, err := client.Do(req)
	if err != nil {
		return // the run has ended
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	failIf(t, resp.StatusCode >= 300, "%s: %s", task, resp.Status)
	if resp.Header.Get("X-Ratelimit-Remaining") != "0" {
		return
	}
	seconds, err := strconv.ParseInt(resp.Header.Get("X-Ratelimit-Reset"), 10, 64)
	failIf(t, err != nil, "%v", err)
	return time.Unix(seconds, 0)
}

func TestRunScoresCommands(t *testing.T) {
	upstream := newUpstream(t)
	server := httptest.NewServer(upstream)
	defer server.Close()
	testservers.NoError(t, Run(t.Context(), []string{os.Args[0]}, server.URL, 2, os.Stderr))
	limit := Limits().Content[0].Max
	score := upstream.Score(2, 0)
	failIf(t, score.Content.Answered != limit || score.ByLimit["content"] != 1 || score.LimitErrors != 2*creations-limit, "score %+v, want %d created, one violation, and limit errors for the other tasks of two programs", score, limit)
}

func TestRunReportsFailedCommand(t *testing.T) {
	err := Run(t.Context(), []string{"sh", "-c", "exit 3"}, "http://judge.test", 1, io.Discard)
	failIf(t, err == nil || err.Error() != `run program 1 of "sh": exit status 3`, "error %v, want the exit status of the program", err)
}

func TestRunEndsProgramsAtTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started, stdout := io.Pipe()
	ended := make(chan error)
	go func() {
		ended <- Run(ctx, []string{"sh", "-c", "echo started; exec sleep 600"}, "http://judge.test", 1, stdout)
	}()
	if line, err := bufio.NewReader(started).ReadString('\n'); err != nil || line != "started\n" {
		t.Fatalf("program wrote %q: %v", line, err)
	}
	cancel()
	_ = started.Close() // nothing waits for a reader of further output
	err := <-ended
	failIf(t, err != nil, "error %v, want none for a program that still ran", err)
}

func TestLoadReportsUnreachableProxy(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	_, err := Load(t.Context(), http.DefaultClient, server.URL, 1)
	failIf(t, err == nil || !strings.Contains(err.Error(), server.URL+": no response: ") || !strings.Contains(err.Error(), "start the proxy before the judge"), "error %v, want the URL and a remedy", err)
}

func TestTasksOfProgramsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for program := range 3 {
		for _, task := range Tasks(program) {
			key := fmt.Sprint(task)
			stopIf(t, seen[key], "two tasks are %s", key)
			seen[key] = true
		}
	}
}

// A Retry-After that no time can follow is no reason to repeat a task without a pause.
func TestLoadBoundsRetryAfter(t *testing.T) {
	for _, field := range []string{"-1", "9300000000", "9223372036854775807"} {
		synctest.Test(t, func(t *testing.T) {
			var requests atomic.Int64
			ctx, cancel := context.WithTimeout(t.Context(), Duration)
			defer cancel()
			client := &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
				if requests.Add(1) > 100_000 { // also without progress of the time
					cancel()
				}
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {field}}, Body: http.NoBody}, nil
			})}
			_, err := Load(ctx, client, "http://proxy.example", 1)
			stopIf(t, err != nil, "%v", err)
			n, most := requests.Load(), int64(len(Tasks(0)))
			failIf(t, n > most, "Retry-After %s: %d requests, want at most %d", field, n, most)
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
