package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// adminHandler returns an admin API with these accounts. An empty token disables
// authentication.
func adminHandler(token string, accounts ...limits.Account) http.Handler {
	return admin.Handler(admin.Access{Token: credential.Secret(token), Hosts: []string{"admin.test"}}, admin.Sources{
		Trail:    admin.NewTrail(slog.New(slog.DiscardHandler)),
		Ready:    func() bool { return true },
		Accounts: func(context.Context, int) ([]limits.Account, error) { return accounts, nil },
		Requests: func() any { return nil },
		State:    func() any { return gatewayState{Limits: "on"} },
		Config:   func() any { return nil },
		Reload:   func() error { return nil },
		Cache:    func() (int, uint64) { return 0, 0 },
		History:  history.New(history.Sources{Waiting: func() map[limits.ClientResource]int { return nil }}),
	})
}

// testView is the budget command with an in-memory connection to a handler.
type testView struct {
	budgetView
	out, problems testservers.Output
	away          atomic.Bool // the listener is down
}

func newTestView(t *testing.T, h http.Handler) *testView {
	t.Helper()
	client := pipeClient(t, testservers.ServePipe(t, "admin.test:9090", &http.Server{Handler: h}))
	v := &testView{}
	v.admin = &adminClient{transportFunc(func(r *http.Request) (*http.Response, error) {
		if v.away.Load() {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return client.Transport.RoundTrip(r)
	}), "http://admin.test:9090", ""}
	v.budgetView.out, v.budgetView.problems = &v.out, &v.problems
	return v
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// shows checks the output of one listing.
func (v *testView) shows(t *testing.T, want string) {
	t.Helper()
	l, err := v.admin.accounts(t.Context())
	if err == nil {
		err = v.print(l)
	}
	failIf(t, err != nil, "%v", err)
	diff := cmp.Diff(strings.TrimPrefix(want, "\n"), v.out.Take())
	failIf(t, diff != "", "shown (-want +got):\n%s", diff)
}

// sampleBudget returns a budget.
func sampleBudget(resource string, used, limit, held int, reset time.Duration) limits.Budget {
	return limits.Budget{Resource: resource, Used: used, Limit: limit, Remaining: limit - used, Held: held, Reset: time.Now().UTC().Add(reset)}
}

// sampleAccount returns an account with one budget.
func sampleAccount(used, limit int, reset time.Duration) limits.Account {
	return limits.Account{Name: "a", Kind: "user", Concurrent: 9, Budgets: []limits.Budget{sampleBudget("core", used, limit, 0, reset)}}
}

// TestBudgetUsesClockOfGateway checks that a wrong local clock does not change the remaining
// times.
func TestBudgetUsesClockOfGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTestView(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
			adminHandler("", sampleAccount(1, 2, -time.Hour+5*time.Second)).ServeHTTP(w, r)
		}))
		v.shows(t, `
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/2     1        in 5s
`)
	})
}

func TestBudgetsAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := sampleAccount(1, 2, 0)
		account.Name, account.Concurrent = "a\x1b\u009b\u202e\u200b\U000e0001ä", 0
		v := newTestView(t, adminHandler("", account))
		v.json, v.terminal = true, true
		v.shows(t, `
[
  {
    "account": "a\u001b\u009b\u202e\u200b\udb40\udc01ä",
    "kind": "user",
    "in_flight": 0,
    "concurrent": 0,
    "budgets": [
      {
        "resource": "core",
        "limit": 2,
        "used": 1,
        "remaining": 1,
        "reset": "2000-01-01T00:00:00Z"
      }
    ],
    "label": "a\u001b\u009b\u202e\u200b\udb40\udc01ä"
  }
]
`)
	})
}

func TestBudgetSendsTokenOnlyToAdminListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTestView(t, adminHandler("secret", limits.Account{Name: "a"}))
		v.admin.token = "secret"
		if _, err := v.admin.accounts(t.Context()); err != nil {
			t.Error(err)
		}
		requests := 0
		elsewhere := newTestView(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests++
			http.Redirect(w, r, "http://elsewhere.test/", http.StatusTemporaryRedirect)
		}))
		elsewhere.admin.token = "secret"
		_, err := elsewhere.admin.accounts(t.Context())
		failIf(t, err == nil || !strings.Contains(err.Error(), "not the admin listener of a Weir: it answered 307") || requests != 1, "%d requests: %v", requests, err)
	})
}

func TestBudgetReportsInvalidResponses(t *testing.T) {
	answer := func(status int, body string, fields ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, f := range fields {
				name, value, _ := strings.Cut(f, ": ")
				w.Header().Set(name, value)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	const foreign = " is not the admin listener of a Weir: its response to /api/v1/accounts has an unexpected content"
	for _, c := range []struct {
		name    string
		handler http.Handler
		token   credential.Secret
		message string
	}{
		{"no token", adminHandler("secret"), "", " requires the admin token: set WEIR_ADMIN_TOKEN, or give --token"},
		{"unknown host name", admin.Handler(admin.Access{}, admin.Sources{}), "", `: host "admin.test:9090" not allowed; add it to admin.hosts`},
		{"wrong token", adminHandler("secret"), "sesame", " rejected the token: use the value of admin.token in the gateway's configuration"},
		{"address of the listener for clients", answer(401, `{"message":"Requires authentication"}`, "Weir-Request-Id: X"), "", " is the gateway's listener for clients: use the address in admin.listen of the configuration"},
		{"lost store", answer(503, "the store\x1b[2J is lost\nmore"), "", " answered 503: the store[2J is lost"},
		{"another server", answer(404, "nothing here"), "", " is not the admin listener of a Weir: it answered 404 to /api/v1/accounts"},
		{"a page", answer(200, "<html>"), "", foreign},
		{"empty response", answer(200, ""), "", foreign},
		{"a message", answer(200, `{"message":"ok"}`), "", foreign},
		{"JSON with an unknown account", answer(200, `[{"account":"a"},{"id":7}]`), "", foreign},
		{"truncated response", answer(200, `[`, "Content-Length: 9"), "", " did not answer: unexpected EOF"},
		{"no response in time", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "", " did not answer within 5s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newTestView(t, c.handler)
				v.admin.token = c.token
				began := time.Now()
				_, err := v.admin.accounts(t.Context())
				want := "http://admin.test:9090" + c.message
				failIf(t, err == nil || err.Error() != want, "got  %v\nwant %s", err, want)
				took := time.Since(began)
				failIf(t, took > callTimeout, "the call took %s", took)
				// Watching returns the same error and prints nothing.
				if err := v.watch(t.Context(), time.Second); err == nil || v.out.String() != "" {
					t.Errorf("watch: %v, %q", err, v.out.String())
				}
			})
		})
	}
}

func TestWatchContinuesAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used := 0
		v := newTestView(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			used++
			adminHandler("", sampleAccount(used, 9, time.Minute)).ServeHTTP(w, r)
		}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.watch(ctx, 2*time.Second) }()
		wantOutput := func(out, problems string) {
			t.Helper()
			synctest.Wait()
			diff := cmp.Diff([]string{out, problems}, []string{v.out.Take(), v.problems.Take()})
			failIf(t, diff != "", "output (-want +got):\n%s", diff)
		}
		table := func(second, used, left int) string {
			return fmt.Sprintf(`http://admin.test:9090, 2000-01-01 00:00:%02d UTC
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   %d/9     %d        in 1m

`, second, used, left)
		}
		wantOutput(table(0, 1, 8), "")
		time.Sleep(2*time.Second - time.Nanosecond)
		wantOutput("", "")
		time.Sleep(time.Nanosecond)
		wantOutput(table(2, 2, 7), "")
		v.away.Store(true)
		time.Sleep(2 * time.Second)
		wantOutput("", "weir: http://admin.test:9090 refused the connection; start the gateway, or give its admin listener with --admin; retrying every 2s\n")
		time.Sleep(20 * time.Second)
		wantOutput("", "") // printed once
		v.away.Store(false)
		time.Sleep(2 * time.Second)
		wantOutput(table(26, 3, 6), "")
		stop()
		err := <-ended
		failIf(t, err != nil, "%v", err)
		wantOutput("", "")
	})
}

func TestWatchCanBeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, completed := range []int32{0, 1} { // completed requests before the interruption
			var requests atomic.Int32
			v := newTestView(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) > completed {
					<-r.Context().Done()
				}
				adminHandler("").ServeHTTP(w, r)
			}))
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, stop)
			began := time.Now()
			err := v.watch(ctx, time.Second)
			failIf(t, err != nil || time.Since(began) != 3*time.Second, "after %s: %v", time.Since(began), err)
			text := v.problems.Take()
			failIf(t, text != "", "output %q", text)
		}
	})
}

// failingWriter returns an error from each write.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestWatchEndsWhenOutputIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, terminal := range []bool{false, true} {
			v := newTestView(t, adminHandler(""))
			closed := errors.New("closed pipe")
			v.terminal = terminal
			v.budgetView.out = failingWriter{closed}
			err := v.watch(t.Context(), time.Second)
			failIf(t, !errors.Is(err, closed), "got %v, want the error of the writer", err)
		}
	})
}

func TestAdminAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:9090":            "http://127.0.0.1:9090",
		":9090":                     "http://127.0.0.1:9090",
		"[::1]:9090":                "http://[::1]:9090",
		"weir.internal:9090":        "http://weir.internal:9090",
		"http://weir:9090/":         "http://weir:9090",
		"https://ops.test/weir/":    "https://ops.test/weir",
		"weir":                      "",
		"":                          "",
		"weir:port":                 "",
		"weir:":                     "",
		"ftp://weir":                "",
		"http://":                   "",
		"http://weir?a=b":           "",
		"http://weir#a":             "",
		"/run/weir.sock":            "",
		"http://admin:hunter2@weir": "",
		"http://a:hunter2@weir:x":   "",
		"admin@weir:9090":           "",
	} {
		got, err := listenerURL(address)
		failIf(t, got != want || (err == nil) != (want != ""), "%s: got %q, %v", address, got, err)
		failIf(t, err != nil && strings.Contains(err.Error(), "hunter2"), "%s: the error contains the password: %v", address, err)
	}
}

func TestIsTerminal(t *testing.T) {
	file := must(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	r, w, err := os.Pipe()
	noError(t, err)
	for _, f := range []*os.File{file, r, w} {
		failIf(t, isTerminal(f), "%s counts as a terminal", f.Name())
		_ = f.Close()
	}
	failIf(t, isTerminal(&bytes.Buffer{}), "a buffer counts as a terminal")
}

// adminRequests is the key of a channel that receives each request to the latest admin
// listener of a script.
type adminRequests struct{}

// startAdmin implements the script command "admin NAME [TOKEN]". It starts an admin listener
// and sets NAME to its URL.
func startAdmin(ts *testscript.TestScript, _ bool, args []string) {
	token := ""
	if len(args) > 1 {
		token = args[1]
	}
	pages := adminHandler(token, limits.Account{Name: "octo\x1b[2J-bot", Kind: "user", InUse: 2, Concurrent: 100, Budgets: []limits.Budget{
		sampleBudget("core", 1250, 5000, 0, -time.Second), sampleBudget("search", 27, 30, 0, -time.Second), sampleBudget("graphql", 0, 5000, 0, -time.Second),
	}})
	requests := make(chan struct{}, 100)
	*ts.Value(adminRequests{}).(*chan struct{}) = requests
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages.ServeHTTP(w, r)
		select {
		case requests <- struct{}{}:
		default: // the script does not wait
		}
	}))
	ts.Defer(server.Close)
	ts.Setenv(args[0], server.URL)
}

// waitForRequests implements the script command "requests N". It waits until the latest admin
// listener has received N requests.
func waitForRequests(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	for range n {
		select {
		case <-*ts.Value(adminRequests{}).(*chan struct{}):
		case <-time.After(time.Minute):
			ts.Fatalf("the admin listener received no request")
		}
	}
}

func TestBudgetOfDemo(t *testing.T) {
	s := start(t, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0", "--traffic", "off")
	gateway := s.find(`gateway +(http://\S+)`)
	listener := s.find(`admin +(http://\S+)`)
	for range 3 {
		get(t, gateway+"/search/commits?q=gear", "Authorization: Bearer tok-owner")
	}
	code, out := runWeir("budget", "--admin", strings.TrimPrefix(listener, "http://"))
	shown := regexp.MustCompile(`(?m)^account [0-9a-f]{8} \(user\): 0 of 100 requests open\n  search +3/30 +27 +in .*\n(  .*\n)*  cpu +[0-9.]+s/90s +[0-9.]+s +in `)
	failIf(t, code != exitOK || !shown.MatchString(out), "admin listener: exit code %d, wrote %s", code, out)
	code, out = runWeir("budget", "--admin", gateway)
	failIf(t, code != exitFailure || out != fmt.Sprintf("weir: %s is the gateway's listener for clients: use the address in admin.listen of the configuration\n", gateway), "listener for clients: exit code %d, wrote %s", code, out)
}

func TestBudgetReportsThatLimitsAreOff(t *testing.T) {
	g := open(t, configure(nowhere, func(c *config.Config) { c.Upstream.Limits, c.Admin.Hosts = false, []string{"admin.test"} }))
	newTestView(t, g.admin(g.started.Admin)).shows(t, "limits are off (upstream.limits): requests are sent immediately\n")
}

// sampleAccounts returns accounts in every state.
func sampleAccounts() []limits.Account {
	return []limits.Account{
		{Name: "zebra", Kind: "installation", Concurrent: 100},
		{Name: "shared", Kind: "user", Concurrent: 50, ClosedSince: time.Now().Add(-90 * time.Minute), Budgets: []limits.Budget{
			{Resource: "points:user/get", Limit: 504, Used: 4, Remaining: 500, Allowance: 0.56},
		}},
		{Name: "octo-bot", Kind: "user", InUse: 3, Concurrent: 50, BlockedUntil: time.Now().Add(43 * time.Second), Budgets: []limits.Budget{
			sampleBudget("core", 1234, 5000, 0, 42*time.Minute+10*time.Second),
			sampleBudget("search", 28, 30, 1, 12*time.Second),
			sampleBudget("graphql", 0, 5000, 0, time.Hour),
			sampleBudget("cpu", 12345, 90000, 1500, 59*time.Second+time.Millisecond),
			sampleBudget("cpu:graphql", 61500, 60000, 0, 61*time.Second),
			sampleBudget("points:user/get", 0, 900, 5, 0),
			sampleBudget("code_search", 1, 10, 0, -time.Second),
		}},
		{Name: "egress:shared", Kind: "unauthenticated", Concurrent: 100, BlockedUntil: time.Now().Add(-time.Second), Budgets: []limits.Budget{
			{Resource: "core", Used: 60, Limit: 60}, sampleBudget("closed", 0, 0, 1, 26*time.Hour),
		}},
	}
}

// TestBudgets checks the table of a file, and of a terminal with all budgets.
func TestBudgets(t *testing.T) {
	const all = `
BUDGET                    USED     LEFT  HELD  RESETS
egress:shared (unauthenticated): 0 of 100 requests open
  closed                   0/0        0     1  in 26h
  core                   60/60        0        -

octo-bot (user): 3 of 50 requests open; cool-down ends in 43s
  cpu:graphql        61.5s/60s    -1.5s        in 1m1s
  search                 28/30        2     1  in 12s
  core               1234/5000     3766        in 42m10s
  cpu              12.345s/90s  77.655s  1.5s  in 1m
  code_search             1/10        9        now
  points:user/get        0/900      900     5  now

shared (user): 0 of 50 requests open; closed for 1h30m, because probes failed: weir account open shared
  points:user/get        4/504      500        -; 56 % of the limit, another program seems to use the rest

zebra (installation): 0 of 100 requests open
  nothing used
`
	const onTerminal = `
BUDGET                    USED     LEFT  HELD  RESETS
egress:shared (unauthenticated): 0 of 100 requests open
  closed                   0/0        0     1  in 26h     ████████████████████
  core                   60/60        0        -          ████████████████████

octo-bot (user): 3 of 50 requests open; cool-down ends in 43s
  cpu:graphql        61.5s/60s    -1.5s        in 1m1s    ████████████████████
  search                 28/30        2     1  in 12s     ██████████████████▒░
  core               1234/5000     3766        in 42m10s  ████░░░░░░░░░░░░░░░░
  cpu              12.345s/90s  77.655s  1.5s  in 1m      ██▒░░░░░░░░░░░░░░░░░
  code_search             1/10        9        now        ██░░░░░░░░░░░░░░░░░░
  points:user/get        0/900      900     5  now        ░░░░░░░░░░░░░░░░░░░░
  graphql               0/5000     5000        in 1h      ░░░░░░░░░░░░░░░░░░░░
`
	for _, c := range []struct {
		skipped  int // accounts
		terminal bool
		want     string
	}{{0, false, all}, {2, true, onTerminal}, {4, false, "no account has sent a request yet\n"}} {
		synctest.Test(t, func(t *testing.T) {
			v := newTestView(t, adminHandler("", sampleAccounts()[c.skipped:]...))
			v.terminal, v.all = c.terminal, c.terminal
			v.shows(t, c.want)
		})
	}
}

// TestBarIsFullOnlyAtTheLimit checks the width and the filled cells of a bar.
func TestBarIsFullOnlyAtTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 10_000).Draw(t, "limit")
		used := rapid.IntRange(-10, 12_000).Draw(t, "used")
		held := rapid.IntRange(-10, 12_000).Draw(t, "held")
		got := budgetBar(limits.Budget{Limit: limit, Used: used, Remaining: limit - used, Held: held})
		if utf8.RuneCountInString(got) != barWidth {
			t.Fatalf("%s has %d cells", got, utf8.RuneCountInString(got))
		}
		if full := strings.Count(got, "█") == barWidth; full != (used >= limit) && limit > 0 {
			t.Fatalf("%d of %d: %s", used, limit, got)
		}
	})
}

// hostileText generates text with control characters and quotes.
func hostileText() *rapid.Generator[string] {
	return rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune("\x00\a\b\t\n\r\x1b\x7f\u009b\u0085\u202e\u2028\u200b\ufeff\U000e0001[];?lh\"\\"))))
}

// TestNamesCannotControlTerminal checks that names from requests and from the configuration
// contain no control sequences in the output.
func TestNamesCannotControlTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name, kind, resource := hostileText().Draw(t, "name"), hostileText().Draw(t, "kind"), hostileText().Draw(t, "resource")
		accounts := []history.Account{{Account: limits.Account{Name: name, Kind: policy.CallerKind(kind), Budgets: []limits.Budget{{Resource: resource, Used: 1, Limit: 2}}}}}
		v := budgetView{terminal: rapid.Bool().Draw(t, "terminal")}
		for _, line := range v.table(&listing{accounts: accounts}, time.Now()) {
			if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || !utf8.ValidString(line) {
				t.Fatalf("unprintable line %q", line)
			}
			if n := utf8.RuneCountInString(line); n > 4*maxName {
				t.Fatalf("line of %d characters", n)
			}
		}
		text, _ := json.Marshal(accounts) // text and numbers
		// Another server may escape fewer characters.
		raw := strings.NewReplacer(`\u2028`, "\u2028", `\u003c`, "<").Replace(string(text)) + "\r\n"
		shown := printableJSON([]byte(raw))
		if i := strings.IndexFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 {
			t.Fatalf("unprintable output %q", shown)
		}
		var before, after any
		if err := errors.Join(json.Unmarshal([]byte(raw), &before), json.Unmarshal([]byte(shown), &after)); err != nil {
			t.Fatalf("invalid JSON %q of %q: %v", shown, raw, err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestNamesAreBounded(t *testing.T) {
	for text, want := range map[string]string{
		"": "?", "\x1b\r\n": "?", "a\x1b[31mb": "a[31mb", strings.Repeat("ä", maxName): strings.Repeat("ä", maxName),
		strings.Repeat("ä", maxName+1): strings.Repeat("ä", maxName-1) + "…", "a\xffb": "a�b",
	} {
		testservers.Equal(t, fmt.Sprintf("%q", text), printable(text, maxName), want)
	}
}

// terminal emulates the control sequences that the command uses.
type terminal struct {
	*testing.T
	rows        [][]rune
	row, column int
	changed     map[string]bool // modes that differ from their defaults, by number
	below       strings.Builder // the output on the main screen, below the shell prompt
}

// sequence matches text up to a control sequence.
var sequence = regexp.MustCompile(`(?s)^(.*?)\x1b\[([?0-9;]*)([A-Za-z])`)

// Write interprets text and control sequences.
func (e *terminal) Write(p []byte) (int, error) {
	text := string(p)
	for m := sequence.FindStringSubmatch(text); m != nil; m = sequence.FindStringSubmatch(text) {
		e.put(m[1])
		e.do(m[2], m[3])
		text = text[len(m[0]):]
	}
	e.put(text)
	return len(p), nil
}

func (e *terminal) do(argument, command string) {
	switch {
	case command == "h" || command == "l":
		e.changed[argument] = (command == "h") == (argument == "?1049") // the cursor and wrapping are on by default
	case command == "H":
		row, _ := strconv.Atoi(strings.TrimSuffix(argument, ";1"))
		e.row, e.column = min(max(row, 1), len(e.rows))-1, 0
	case command == "K" && argument == "":
		e.rows[e.row] = e.rows[e.row][:e.column]
	case command == "J" && argument == "":
		e.rows[e.row] = e.rows[e.row][:e.column]
		for i := e.row + 1; i < len(e.rows); i++ {
			e.rows[i] = nil
		}
	default:
		e.Errorf("unknown control sequence %s%s", argument, command)
	}
}

func (e *terminal) put(text string) {
	if !e.changed["?1049"] {
		e.below.WriteString(text)
		return
	}
	for _, r := range text {
		failIf(e, !unicode.IsPrint(r), "unprintable character %q", r)
		e.rows[e.row] = append(e.rows[e.row][:e.column], append([]rune{r}, e.rows[e.row][min(e.column+1, len(e.rows[e.row])):]...)...)
		e.column++
	}
}

func (e *terminal) shows(want string) {
	e.Helper()
	synctest.Wait()
	lines := make([]string, len(e.rows))
	for i, row := range e.rows {
		lines[i] = string(row)
	}
	diff := cmp.Diff(strings.TrimPrefix(want, "\n"), strings.TrimRight(strings.Join(lines, "\n"), "\n"))
	failIf(e, diff != "", "screen (-want +got):\n%s", diff)
}

func TestWatchOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var accounts atomic.Value
		accounts.Store(sampleAccounts()[2:])
		v := newTestView(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			adminHandler("", accounts.Load().([]limits.Account)...).ServeHTTP(w, r)
		}))
		screen := &terminal{T: t, rows: make([][]rune, 9), changed: map[string]bool{}}
		v.terminal, v.budgetView.out = true, screen
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.watch(ctx, time.Second) }()
		// A small screen shows the first rows.
		screen.shows(`
http://admin.test:9090, 2000-01-01 00:00:00 UTC; Ctrl-C ends

BUDGET                    USED     LEFT  HELD  RESETS
egress:shared (unauthenticated): 0 of 100 requests open
  closed                   0/0        0     1  in 26h     ████████████████████
  core                   60/60        0        -          ████████████████████

octo-bot (user): 3 of 50 requests open; cool-down ends in 43s
  points:user/get        0/900      900     5  now        ░░░░░░░░░░░░░░░░░░░░`[1:])
		for _, mode := range []string{"?1049", "?25", "?7"} {
			failIf(t, !screen.changed[mode], "mode %s is not set", mode)
		}
		// A shorter table clears the rest of the screen.
		accounts.Store([]limits.Account{sampleAccount(1, 2, 11*time.Second)})
		table := func(left int) string {
			return fmt.Sprintf(`
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/2     1        in %-4s ██████████░░░░░░░░░░`, fmt.Sprint(left, "s"))
		}
		shows := func(second int, problem string, left int) {
			t.Helper()
			screen.shows(fmt.Sprintf("http://admin.test:9090, 2000-01-01 00:00:%02d UTC; Ctrl-C ends\n%s%s", second, problem, table(left)))
		}
		time.Sleep(time.Second)
		shows(1, "", 10)
		// The last data stays while the gateway is down, and the times advance.
		v.away.Store(true)
		time.Sleep(3 * time.Second)
		shows(4, "for 3s: http://admin.test:9090 refused the connection; start the gateway, or give its admin listener with --admin\n", 7)
		v.away.Store(false)
		time.Sleep(time.Second)
		shows(5, "", 6)
		stop()
		err := <-ended
		failIf(t, err != nil, "%v", err)
		for mode, changed := range screen.changed {
			failIf(t, changed, "mode %s is not reset", mode)
		}
		last := strings.TrimPrefix(table(6), "\n") + "\n"
		diff := cmp.Diff([]string{last, ""}, []string{screen.below.String(), v.problems.Take()})
		failIf(t, diff != "", "main screen (-want +got):\n%s", diff)
	})
}

// TestTableShowsForecastsAndClients checks waiting requests, budgets that end before their reset, and the columns of client
// budgets. An unused client that lends its part is listed.
func TestTableShowsForecastsAndClients(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	account := func(budgets ...limits.Budget) limits.Account {
		return limits.Account{Name: "octo-bot", Kind: policy.User, Concurrent: 100, Budgets: budgets}
	}
	for _, c := range []struct {
		account history.Account
		want    string
	}{
		{history.Account{
			Account: account(
				limits.Budget{Resource: "core", Limit: 5000, Used: 4000, Remaining: 1000, Reset: now.Add(30 * time.Minute)},
				limits.Budget{Resource: "search", Limit: 30, Used: 3, Remaining: 27, Reset: now.Add(time.Minute)}),
			Waiting: 3,
			Forecasts: map[string]history.Forecast{
				"core": {Rate: 4, Ends: now.Add(250 * time.Second), Early: true}, "search": {Rate: 0.1, Ends: now.Add(270 * time.Second)},
			},
		}, `
BUDGET         USED  LEFT  HELD  RESETS
octo-bot (user): 0 of 100 requests open; 3 waiting
  core    4000/5000  1000        in 30m; at this rate nothing is left in 4m10s
  search       3/30    27        in 1m`},
		{history.Account{
			Account: account(
				limits.Budget{Resource: "core", Limit: 5000, Used: 4000, Remaining: 1000},
				limits.Budget{Resource: "client:core:agent", Client: "agent", Limit: 4500, Used: 3900, Remaining: 600, Nominal: 1666, Borrowed: 2234},
				limits.Budget{Resource: "client:core:gh", Client: "gh", Limit: 4500, Used: 100, Remaining: 4400, Nominal: 1666, Lent: 1082, Guarantee: 250},
				limits.Budget{Resource: "client:core:ci", Client: "ci", Limit: 4500, Remaining: 4500, Nominal: 1666, Lent: 1152},
				limits.Budget{Resource: "client:core:people", Client: "people", Limit: 4500, Used: 100, Remaining: 4400}),
			Clients: map[string]history.ClientRequests{"client:core:agent": {Waiting: 7, Denied: 12}},
		}, `
BUDGET                     USED  LEFT  HELD  PART  BORROWED  LENT  WAITING  DENIED  RESETS
octo-bot (user): 0 of 100 requests open
  client:core:agent   3900/4500   600        1666      2234     0        7      12  -
  core                4000/5000  1000                                               -
  client:core:gh       100/4500  4400        1666         0  1082        0       0  -; 250 guaranteed
  client:core:people   100/4500  4400                                               -
  client:core:ci         0/4500  4500        1666         0  1152        0       0  -`},
	} {
		got := (&budgetView{}).table(&listing{accounts: []history.Account{c.account}}, now)
		diff := cmp.Diff(c.want, "\n"+strings.Join(got, "\n"))
		failIf(t, diff != "", "%v", diff)
	}
}
