package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
)

type budgetCommand struct {
	adminFlags
	All      bool          `help:"Include unused budgets."`
	Watch    bool          `help:"Repeat until Ctrl-C."`
	Interval time.Duration `default:"1s" help:"Time between two updates, with --watch."`
	JSON     bool          `name:"json" help:"Print the JSON of the admin listener."`
}

// Run prints what remains of the budgets of each account.
func (c *budgetCommand) Run(p *process) error {
	if c.Interval <= 0 {
		return &exit{exitUsage, fmt.Sprintf("--interval: %s: must be more than 0", c.Interval)}
	}
	admin, err := c.client(p)
	if err != nil {
		return err
	}
	term, _ := p.getenv("TERM")
	v := &budgetView{
		admin: admin, json: c.JSON, all: c.All,
		out: p.stdout, problems: p.stderr, terminal: isTerminal(p.stdout) && term != "dumb",
	}
	if c.Watch {
		return v.watch(p.ctx, c.Interval)
	}
	l, err := v.admin.accounts(p.ctx)
	if err != nil {
		return err
	}
	return v.print(l)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// budgetView fetches and prints the accounts of a gateway.
type budgetView struct {
	admin         *adminClient
	json, all     bool
	out, problems io.Writer
	terminal      bool // out can move its cursor
}

// listing is one response of the admin listener.
type listing struct {
	text     []byte
	accounts []history.Account
	off      bool      // upstream.limits is off
	at       time.Time // creation, by the gateway's clock
	received time.Time // arrival, by the local clock
}

func (a *adminClient) accounts(ctx context.Context) (*listing, error) {
	const path = "/api/v1/accounts"
	l := &listing{}
	var err error
	if l.text, l.at, err = a.call(ctx, http.MethodGet, path, nil, &l.accounts); err != nil {
		return nil, err
	}
	l.received = time.Now()
	if slices.ContainsFunc(l.accounts, func(a history.Account) bool { return a.Name == "" }) {
		return nil, a.unexpectedContent(path)
	}
	if len(l.accounts) == 0 {
		var state struct{ Limits string }
		if _, _, err := a.call(ctx, http.MethodGet, "/api/v1/state", nil, &state); err != nil {
			return nil, err
		}
		l.off = state.Limits == config.Switch(false).String()
	}
	return l, nil
}

func (v *budgetView) print(l *listing) error {
	text := strings.Join(v.table(l, l.at), "\n") + "\n"
	if v.json {
		text = printableJSON(l.text)
	}
	_, err := io.WriteString(v.out, text)
	return err
}

// Control sequences: alternate screen, hidden cursor, no line wrap; and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// watch prints the accounts in every interval. The end of ctx is not an error. If the first
// call fails, watch returns its error; later failures are reported and the call is repeated.
// On a terminal each listing replaces the previous listing, and the last listing stays on the
// screen.
func (v *budgetView) watch(ctx context.Context, interval time.Duration) (err error) {
	last, err := v.admin.accounts(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	redraw := v.terminal && !v.json
	if redraw {
		if _, err := io.WriteString(v.out, enterScreen); err != nil {
			return err
		}
		defer func() {
			_, leaveErr := io.WriteString(v.out, leaveScreen)
			err = cmp.Or(err, leaveErr, v.print(last))
		}()
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var failure, reported error
	for ctx.Err() == nil {
		switch {
		case redraw:
			err = v.redraw(last, failure)
		case failure == nil:
			err = v.append(last)
		case reported == nil:
			_, err = fmt.Fprintf(v.problems, "weir: %v; retrying every %s\n", failure, interval)
		}
		if err != nil {
			return err
		}
		reported = failure
		select {
		case <-ctx.Done():
		case <-ticker.C:
			var next *listing
			if next, failure = v.admin.accounts(ctx); failure == nil {
				last = next
			}
		}
	}
	return nil
}

// append prints a listing below the previous listings.
func (v *budgetView) append(l *listing) error {
	if v.json {
		return v.print(l)
	}
	_, err := fmt.Fprintf(v.out, "%s\n%s\n\n", v.title(l.at), strings.Join(v.table(l, l.at), "\n"))
	return err
}

func (v *budgetView) title(at time.Time) string {
	return v.admin.base + ", " + at.UTC().Format(time.DateTime) + " UTC"
}

// redraw replaces the previous listing on the screen. It positions each line by its row, so
// that a listing longer than the screen does not scroll.
func (v *budgetView) redraw(l *listing, failure error) error {
	now := l.at.Add(time.Since(l.received))
	lines := []string{v.title(now) + "; Ctrl-C ends"}
	if failure != nil {
		lines = append(lines, fmt.Sprintf("for %s: %v", durations.Left(time.Since(l.received)), failure))
	}
	lines = append(append(lines, ""), v.table(l, now)...)
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[K", i+1, line)
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(v.out, b.String())
	return err
}

// row is a line of the table: name, used, left, held, the columns of clients, reset, bar.
type row [11]string

// firstClientColumn and lastClientColumn are the columns of a row that only client budgets have.
const firstClientColumn, lastClientColumn = 4, 8

// table returns the lines of the table: accounts by label, and the budgets of each account with
// the smallest remaining part first.
func (v *budgetView) table(l *listing, now time.Time) []string {
	switch {
	case l.off:
		return []string{"limits are off (upstream.limits): requests are sent immediately"}
	case len(l.accounts) == 0:
		return []string{"no account has sent a request yet"}
	}
	accounts := slices.Clone(l.accounts)
	slices.SortFunc(accounts, func(a, b history.Account) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	head := row{"BUDGET", "USED", "LEFT", "HELD", "PART", "BORROWED", "LENT", "WAITING", "DENIED", "RESETS"}
	if !slices.ContainsFunc(accounts, func(a history.Account) bool { return slices.ContainsFunc(a.Budgets, isClient) }) {
		clear(head[firstClientColumn : lastClientColumn+1])
	}
	rows := make([][]row, len(accounts))
	var width [len(head)]int
	for i, account := range accounts {
		rows[i] = v.rows(account, now)
		for _, r := range append(rows[i], head) {
			for column, cell := range r {
				width[column] = max(width[column], utf8.RuneCountInString(cell))
			}
		}
	}
	format := func(r row) string {
		line := fmt.Sprintf("%-*s", width[0], r[0])
		for column := 1; column <= lastClientColumn; column++ {
			if width[column] > 0 {
				line += fmt.Sprintf("  %*s", width[column], r[column])
			}
		}
		return strings.TrimRight(fmt.Sprintf("%s  %-*s  %s", line, width[9], r[9], r[10]), " ")
	}
	lines := []string{format(head)}
	for i, account := range accounts {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, accountLine(account, now))
		for _, r := range rows[i] {
			lines = append(lines, format(r))
		}
		if len(rows[i]) == 0 {
			lines = append(lines, "  nothing used")
		}
	}
	return lines
}

func accountLine(a history.Account, now time.Time) string {
	s := fmt.Sprintf("%s (%s): %d of %d requests open",
		printable(cmp.Or(a.Label, a.Name), maxName), printable(string(a.Kind), maxName), a.InUse, a.Concurrent)
	if !a.ClosedSince.IsZero() {
		s += fmt.Sprintf("; closed for %s, because probes failed: weir account open %s",
			durations.Left(now.Sub(a.ClosedSince)), printable(a.Name, maxName))
	}
	if left := a.BlockedUntil.Sub(now); !a.BlockedUntil.IsZero() && left > 0 {
		s += "; cool-down ends in " + durations.Left(left)
	}
	if d := a.GraphQLDrain; d != nil {
		s += "; GraphQL is almost empty while REST is almost unused"
		for i, q := range d.Queries {
			separator := ", "
			if i == 0 {
				separator = ": store (cache.graphql) or move to REST "
			}
			s += fmt.Sprintf("%s%s (%d points)", separator, printable(q.Name, maxName), q.Spent)
		}
	}
	if a.Waiting > 0 {
		s += fmt.Sprintf("; %d waiting", a.Waiting)
	}
	return s
}

// rows returns the rows of the used budgets of an account, or of all its budgets.
func (v *budgetView) rows(a history.Account, now time.Time) []row {
	budgets := slices.DeleteFunc(slices.Clone(a.Budgets), func(b limits.Budget) bool {
		return !v.all && b.Used == 0 && b.Held == 0 && b.Lent == 0 && a.Clients[b.Resource] == history.ClientRequests{}
	})
	available := func(b limits.Budget) float64 { return float64(b.Remaining-b.Held) / float64(b.Limit) }
	slices.SortFunc(budgets, func(a, b limits.Budget) int {
		return cmp.Or(cmp.Compare(available(a), available(b)), cmp.Compare(a.Resource, b.Resource))
	})
	rows := make([]row, len(budgets))
	for i, b := range budgets {
		amount := strconv.Itoa
		if kind, _, _ := strings.Cut(b.Resource, ":"); kind == string(limits.CPU) {
			amount = func(milliseconds int) string {
				return durations.Seconds(time.Duration(milliseconds) * time.Millisecond)
			}
		}
		held, reset, bar := "", "-", ""
		if b.Held != 0 {
			held = amount(b.Held)
		}
		if left := b.Reset.Sub(now); left > 0 {
			reset = "in " + durations.Left(left)
		} else if !b.Reset.IsZero() {
			reset = "now"
		}
		if f, ok := a.Forecasts[b.Resource]; ok && f.Early && f.Ends.After(now) {
			reset += "; at this rate nothing is left in " + durations.Left(f.Ends.Sub(now))
		}
		if b.Allowance != 0 {
			reset += fmt.Sprintf("; %.0f %% of the limit, another program seems to use the rest", 100*b.Allowance)
		}
		if b.Guarantee != 0 {
			reset += "; " + strconv.Itoa(b.Guarantee) + " guaranteed"
		}
		if v.terminal {
			bar = budgetBar(b)
		}
		name, used := "  "+printable(b.Resource, maxName), amount(b.Used)+"/"+amount(b.Limit)
		rows[i] = row{0: name, 1: used, 2: amount(b.Remaining), 3: held, 9: reset, 10: bar}
		if isClient(b) {
			requests := a.Clients[b.Resource]
			for column, n := range []int{b.Nominal, b.Borrowed, b.Lent, requests.Waiting, int(requests.Denied)} {
				rows[i][firstClientColumn+column] = strconv.Itoa(n)
			}
		}
	}
	return rows
}

// isClient reports whether a budget is that of one client. A group has no nominal part.
func isClient(b limits.Budget) bool { return b.Nominal > 0 }

const barWidth = 20

// budgetBar draws the used, the held and the remaining part. It is full only if nothing remains.
func budgetBar(b limits.Budget) string {
	cells := func(n int) int {
		if b.Limit <= 0 {
			return barWidth
		}
		return int(min(max(0, float64(n)/float64(b.Limit)), 1) * barWidth)
	}
	used := cells(b.Used)
	held := max(0, cells(b.Used+b.Held)-used)
	return strings.Repeat("█", used) + strings.Repeat("▒", held) + strings.Repeat("░", barWidth-used-held)
}
