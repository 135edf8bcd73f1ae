package main

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// sampleAccounts returns accounts in every state.
func sampleAccounts() []limits.Account {
	return []limits.Account{
		{Name: "zebra", Kind: "installation", Concurrent: 100},
		{Name: "shared", Kind: "user", Concurrent: 50, ClosedSince: time.Now().Add(-90 * time.Minute), Budgets: []limits.Budget{
			{Resource: "points:user/get", Limit: 504, Used: 4, Remaining: 500, Share: 0.56},
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

func TestBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTestView(t, adminHandler("", sampleAccounts()...))
		v.shows(t, `
BUDGET                    USED     LEFT  HELD  RESETS
egress:shared (unauthenticated): 0 of 100 requests open
  closed                   0/0        0     1  in 1d 2h
  core                   60/60        0        -

octo-bot (user): 3 of 50 requests open; cool-down ends in 43s
  cpu:graphql        61.5s/60s    -1.5s        in 1m 1s
  search                 28/30        2     1  in 12s
  core               1234/5000     3766        in 42m 10s
  cpu              12.345s/90s  77.655s  1.5s  in 1m
  code_search             1/10        9        now
  points:user/get        0/900      900     5  now

shared (user): 0 of 50 requests open; closed for 1h 30m, because probes failed: weir account open shared
  points:user/get        4/504      500        -; 56 % of the limit, another program seems to use the rest

zebra (installation): 0 of 100 requests open
  nothing used
`)
	})
}

func TestBudgetsOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newTestView(t, adminHandler("", sampleAccounts()[2:]...))
		v.terminal, v.all = true, true
		v.shows(t, `
BUDGET                    USED     LEFT  HELD  RESETS
egress:shared (unauthenticated): 0 of 100 requests open
  closed                   0/0        0     1  in 1d 2h    ████████████████████
  core                   60/60        0        -           ████████████████████

octo-bot (user): 3 of 50 requests open; cool-down ends in 43s
  cpu:graphql        61.5s/60s    -1.5s        in 1m 1s    ████████████████████
  search                 28/30        2     1  in 12s      ██████████████████▒░
  core               1234/5000     3766        in 42m 10s  ████░░░░░░░░░░░░░░░░
  cpu              12.345s/90s  77.655s  1.5s  in 1m       ██▒░░░░░░░░░░░░░░░░░
  code_search             1/10        9        now         ██░░░░░░░░░░░░░░░░░░
  points:user/get        0/900      900     5  now         ░░░░░░░░░░░░░░░░░░░░
  graphql               0/5000     5000        in 1h       ░░░░░░░░░░░░░░░░░░░░
`)
	})
}

func TestBudgetWithoutAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { newTestView(t, adminHandler("")).shows(t, "no account has sent a request yet\n") })
}

func TestDurationsInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "1s", time.Second: "1s", time.Second + 1: "2s", 59*time.Second + 1: "1m", 12*time.Minute + 3*time.Second: "12m 3s",
		time.Hour: "1h", time.Hour + 59*time.Second: "1h", time.Hour + 62*time.Second: "1h 1m", 26 * time.Hour: "1d 2h", 24*time.Hour + time.Minute: "1d",
		1<<63 - 1: "106751d 23h",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
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
		text, err := json.Marshal(accounts)
		if err != nil {
			t.Fatal(err)
		}
		// Another server may escape fewer characters.
		raw := strings.NewReplacer(`\u2028`, "\u2028", `\u003c`, "<").Replace(string(text)) + "\r\n"
		shown := printableJSON([]byte(raw))
		if i := strings.IndexFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 {
			t.Fatalf("unprintable output %q", shown)
		}
		var before, after any
		if err := json.Unmarshal([]byte(raw), &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(shown), &after); err != nil {
			t.Fatalf("invalid JSON %q: %v", shown, err)
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
		if got := printable(text, maxName); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
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
		if !unicode.IsPrint(r) {
			e.Errorf("unprintable character %q", r)
		}
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
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), strings.TrimRight(strings.Join(lines, "\n"), "\n")); diff != "" {
		e.Errorf("screen (-want +got):\n%s", diff)
	}
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
  closed                   0/0        0     1  in 1d 2h    ████████████████████
  core                   60/60        0        -           ████████████████████

octo-bot (user): 3 of 50 requests open; cool-down ends in 43s
  points:user/get        0/900      900     5  now         ░░░░░░░░░░░░░░░░░░░░`[1:])
		for _, mode := range []string{"?1049", "?25", "?7"} {
			if !screen.changed[mode] {
				t.Errorf("mode %s is not set", mode)
			}
		}
		// A shorter table clears the rest of the screen.
		accounts.Store([]limits.Account{{Name: "a", Kind: "user", Concurrent: 9, Budgets: []limits.Budget{sampleBudget("core", 1, 2, 0, 11*time.Second)}}})
		time.Sleep(time.Second)
		screen.shows(`
http://admin.test:9090, 2000-01-01 00:00:01 UTC; Ctrl-C ends

BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/2     1        in 10s  ██████████░░░░░░░░░░`[1:])
		// The last data stays while the gateway is down, and the times advance.
		v.away.Store(true)
		time.Sleep(3 * time.Second)
		screen.shows(`
http://admin.test:9090, 2000-01-01 00:00:04 UTC; Ctrl-C ends
for 3s: http://admin.test:9090 refused the connection: is the gateway running, and is this its admin address (--admin)?

BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/2     1        in 7s   ██████████░░░░░░░░░░`[1:])
		v.away.Store(false)
		time.Sleep(time.Second)
		screen.shows(`
http://admin.test:9090, 2000-01-01 00:00:05 UTC; Ctrl-C ends

BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/2     1        in 6s   ██████████░░░░░░░░░░`[1:])
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for mode, changed := range screen.changed {
			if changed {
				t.Errorf("mode %s is not reset", mode)
			}
		}
		last := `
BUDGET  USED  LEFT  HELD  RESETS
a (user): 0 of 9 requests open
  core   1/2     1        in 6s   ██████████░░░░░░░░░░
`[1:]
		if diff := cmp.Diff([]string{last, ""}, []string{screen.below.String(), v.problems.take()}); diff != "" {
			t.Errorf("main screen (-want +got):\n%s", diff)
		}
	})
}

// TestTableShowsForecasts checks waiting requests, and budgets that end before their reset.
func TestTableShowsForecasts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := history.Account{
		Account: limits.Account{Name: "octo-bot", Kind: policy.User, Concurrent: 100, Budgets: []limits.Budget{
			{Resource: "core", Limit: 5000, Used: 4000, Remaining: 1000, Reset: now.Add(30 * time.Minute)},
			{Resource: "search", Limit: 30, Used: 3, Remaining: 27, Reset: now.Add(time.Minute)},
		}},
		Waiting: 3,
		Forecasts: map[string]history.Forecast{
			"core":   {Rate: 4, Ends: now.Add(250 * time.Second), Early: true},
			"search": {Rate: 0.1, Ends: now.Add(270 * time.Second)},
		},
	}
	want := []string{
		"BUDGET         USED  LEFT  HELD  RESETS",
		"octo-bot (user): 0 of 100 requests open; 3 waiting",
		"  core    4000/5000  1000        in 30m; at this rate nothing is left in 4m 10s",
		"  search       3/30    27        in 1m",
	}
	if diff := cmp.Diff(want, (&budgetView{}).table(&listing{accounts: []history.Account{a}}, now)); diff != "" {
		t.Error(diff)
	}
}

// TestTableShowsClients checks the columns of client budgets. An unused client that lends its part is listed.
func TestTableShowsClients(t *testing.T) {
	a := history.Account{
		Account: limits.Account{Name: "octo-bot", Kind: policy.User, Concurrent: 100, Budgets: []limits.Budget{
			{Resource: "core", Limit: 5000, Used: 4000, Remaining: 1000},
			{Resource: "client:core:agent", Client: "agent", Limit: 4500, Used: 3900, Remaining: 600, Nominal: 1666, Borrowed: 2234},
			{Resource: "client:core:gh", Client: "gh", Limit: 4500, Used: 100, Remaining: 4400, Nominal: 1666, Lent: 1082, Guarantee: 250},
			{Resource: "client:core:ci", Client: "ci", Limit: 4500, Remaining: 4500, Nominal: 1666, Lent: 1152},
			{Resource: "client:core:people", Client: "people", Limit: 4500, Used: 100, Remaining: 4400},
		}},
		Clients: map[string]history.ClientRequests{"client:core:agent": {Waiting: 7, Denied: 12}},
	}
	want := []string{
		"BUDGET                     USED  LEFT  HELD  PART  BORROWED  LENT  WAITING  DENIED  RESETS",
		"octo-bot (user): 0 of 100 requests open",
		"  client:core:agent   3900/4500   600        1666      2234     0        7      12  -",
		"  core                4000/5000  1000                                               -",
		"  client:core:gh       100/4500  4400        1666         0  1082        0       0  -; 250 guaranteed",
		"  client:core:people   100/4500  4400                                               -",
		"  client:core:ci         0/4500  4500        1666         0  1152        0       0  -",
	}
	if diff := cmp.Diff(want, (&budgetView{}).table(&listing{accounts: []history.Account{a}}, time.Now())); diff != "" {
		t.Error(diff)
	}
}
