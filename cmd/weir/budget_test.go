package main

import (
	"bytes"
	"context"
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

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
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
	out, problems output
	away          atomic.Bool // the listener is down
}

// take returns the output since the previous call.
func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.text.Reset()
	return o.text.String()
}

func newTestView(t *testing.T, h http.Handler) *testView {
	t.Helper()
	l := testservers.ServePipe(t, "admin.test:9090", &http.Server{Handler: h})
	transport := &http.Transport{DialContext: l.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	v := &testView{}
	v.admin = &adminClient{transportFunc(func(r *http.Request) (*http.Response, error) {
		if v.away.Load() {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return transport.RoundTrip(r)
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
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), v.out.take()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}

// sampleBudget returns a budget.
func sampleBudget(resource string, used, limit, held int, reset time.Duration) limits.Budget {
	return limits.Budget{Resource: resource, Used: used, Limit: limit, Remaining: limit - used, Held: held, Reset: time.Now().UTC().Add(reset)}
}

// TestBudgetUsesClockOfGateway checks that a wrong local clock does not change the remaining
// times.
func TestBudgetUsesClockOfGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTestView(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
			adminHandler("", limits.Account{Name: "a", Kind: "user", Concurrent: 9, Budgets: []limits.Budget{sampleBudget("core", 1, 2, 0, -time.Hour+5*time.Second)}}).ServeHTTP(w, r)
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
		v := newTestView(t, adminHandler("", limits.Account{Name: "a\x1b\u009b\u202e\u200b\U000e0001ä", Kind: "user", Budgets: []limits.Budget{sampleBudget("core", 1, 2, 0, 0)}}))
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
		if err == nil || !strings.Contains(err.Error(), "not the admin listener of a Weir: it answered 307") || requests != 1 {
			t.Errorf("%d requests: %v", requests, err)
		}
	})
}

func TestBudgetReportsInvalidResponses(t *testing.T) {
	answer := func(status int, body string, fields ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	for _, c := range []struct {
		name    string
		handler http.Handler
		token   credential.Secret
		message string
	}{
		{"no token", adminHandler("secret"), "", " requires the admin token: set WEIR_ADMIN_TOKEN, or give --token"},
		{"unknown host name", admin.Handler(admin.Access{}, admin.Sources{}), "", `: host "admin.test:9090" not allowed; add it to admin.hosts`},
		{"wrong token", adminHandler("secret"), "sesame", " rejected the token: use the value of admin.token in the gateway's configuration"},
		{"address of the listener for clients", answer(401, `{"message":"Requires authentication"}`, "Weir-Request-Id", "X"), "", " is the gateway's listener for clients: use the address in admin.listen of the configuration"},
		{"lost store", answer(503, "the store\x1b[2J is lost\nmore"), "", " answered 503: the store[2J is lost"},
		{"another server", answer(404, "nothing here"), "", " is not the admin listener of a Weir: it answered 404 to /api/v1/accounts"},
		{"a page", answer(200, "<html>"), "", " is not the admin listener of a Weir: its response to /api/v1/accounts has an unexpected content"},
		{"empty response", answer(200, ""), "", " is not the admin listener of a Weir: its response to /api/v1/accounts has an unexpected content"},
		{"a message", answer(200, `{"message":"ok"}`), "", " is not the admin listener of a Weir: its response to /api/v1/accounts has an unexpected content"},
		{"JSON with an unknown account", answer(200, `[{"account":"a"},{"id":7}]`), "", " is not the admin listener of a Weir: its response to /api/v1/accounts has an unexpected content"},
		{"truncated response", answer(200, `[`, "Content-Length", "9"), "", " did not answer: unexpected EOF"},
		{"no response in time", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "", " did not answer within 5s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newTestView(t, c.handler)
				v.admin.token = c.token
				began := time.Now()
				_, err := v.admin.accounts(t.Context())
				if want := "http://admin.test:9090" + c.message; err == nil || err.Error() != want {
					t.Errorf("got  %v\nwant %s", err, want)
				}
				if took := time.Since(began); took > callTimeout {
					t.Errorf("the call took %s", took)
				}
				// Watching returns the same error and prints nothing.
				if err := v.watch(t.Context(), time.Second); err == nil || v.out.text.Len() > 0 {
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
			adminHandler("", limits.Account{Name: "a", Kind: "user", Concurrent: 9, Budgets: []limits.Budget{sampleBudget("core", used, 9, 0, time.Minute)}}).ServeHTTP(w, r)
		}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.watch(ctx, 2*time.Second) }()
		wantOutput := func(out, problems string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff([]string{strings.TrimPrefix(out, "\n"), problems}, []string{v.out.take(), v.problems.take()}); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		}
		wantOutput(`
http://admin.test:9090, 2000-01-01 00:00:00 UTC
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/9     8        in 1m

`, "")
		time.Sleep(2*time.Second - time.Nanosecond)
		wantOutput("", "")
		time.Sleep(time.Nanosecond)
		wantOutput(`
http://admin.test:9090, 2000-01-01 00:00:02 UTC
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   2/9     7        in 1m

`, "")
		v.away.Store(true)
		time.Sleep(2 * time.Second)
		wantOutput("", "weir: http://admin.test:9090 refused the connection: is the gateway running, and is this its admin address (--admin)?; retrying every 2s\n")
		time.Sleep(20 * time.Second)
		wantOutput("", "") // printed once
		v.away.Store(false)
		time.Sleep(2 * time.Second)
		wantOutput(`
http://admin.test:9090, 2000-01-01 00:00:26 UTC
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   3/9     6        in 1m

`, "")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
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
			if err := v.watch(ctx, time.Second); err != nil || time.Since(began) != 3*time.Second {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if text := v.problems.take(); text != "" {
				t.Errorf("output %q", text)
			}
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
			if err := v.watch(t.Context(), time.Second); !errors.Is(err, closed) {
				t.Errorf("got %v, want the error of the writer", err)
			}
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
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v", address, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error contains the password: %v", address, err)
		}
	}
}

func TestIsTerminal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{file, r, w} {
		if isTerminal(f) {
			t.Errorf("%s counts as a terminal", f.Name())
		}
		_ = f.Close()
	}
	if isTerminal(&bytes.Buffer{}) {
		t.Error("a buffer counts as a terminal")
	}
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
	send := func(args ...string) (int, string, string) {
		var out, problems bytes.Buffer
		code := run(t.Context(), append([]string{"budget", "--admin"}, args...), noEnv, &out, &problems)
		return code, out.String(), problems.String()
	}
	code, out, problems := send(strings.TrimPrefix(listener, "http://"))
	shown := regexp.MustCompile(`(?m)^account [0-9a-f]{8} \(user\): 0 of 100 requests open\n  search +3/30 +27 +in .*\n(  .*\n)*  cpu +[0-9.]+s/90s +[0-9.]+s +in `)
	if code != exitOK || !shown.MatchString(out) || problems != "" {
		t.Errorf("admin listener: exit code %d, wrote %s%s", code, out, problems)
	}
	code, out, problems = send(gateway)
	if code != exitFailure || out != "" || problems != fmt.Sprintf("weir: %s is the gateway's listener for clients: use the address in admin.listen of the configuration\n", gateway) {
		t.Errorf("listener for clients: exit code %d, wrote %s%s", code, out, problems)
	}
}

func TestBudgetReportsThatLimitsAreOff(t *testing.T) {
	h := admin.Handler(admin.Access{Hosts: []string{"admin.test"}}, admin.Sources{
		Accounts: func(context.Context, int) ([]limits.Account, error) { return nil, nil },
		State:    func() any { return gatewayState{Limits: "off"} },
		History:  history.New(history.Sources{Waiting: func() map[limits.ClientResource]int { return nil }}),
	})
	v := newTestView(t, h)
	l, err := v.admin.accounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := v.print(l); err != nil {
		t.Fatal(err)
	}
	if got, want := v.out.take(), "limits are off (upstream.limits): requests are sent immediately\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
