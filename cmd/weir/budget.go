package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/history"
)

type budgetCommand struct {
	adminFlags
	All      bool          `help:"Untouched budgets too."`
	Watch    bool          `help:"Ask again and again, until Ctrl-C."`
	Interval time.Duration `default:"1s" help:"How often, with --watch."`
	JSON     bool          `name:"json" help:"The answer of the admin listener as it is."`
}

// Run shows what each account has left.
func (c *budgetCommand) Run(p *process) error {
	if c.Interval <= 0 {
		return &exit{exitUsage, fmt.Sprintf("--interval: %s: must be more than 0", c.Interval)}
	}
	admin, closing, err := c.listener(p)
	if err != nil {
		return err
	}
	defer closing()
	v := &budgetView{
		admin: admin, json: c.JSON, all: c.All,
		out: p.stdout, problems: p.stderr, terminal: isTerminal(p.stdout) && !isDumb(p.getenv),
	}
	if c.Watch {
		return v.watch(p.ctx, c.Interval)
	}
	return v.once(p.ctx)
}

// isTerminal reports whether somebody looks at what is written there.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// isDumb reports whether the terminal cannot move its cursor.
func isDumb(getenv func(string) (string, bool)) bool {
	term, _ := getenv("TERM")
	return term == "dumb"
}

// listing is an answer of the admin listener.
type listing struct {
	text     []byte
	accounts []history.Account
	at       time.Time // when it was made, by the gateway's clock
	got      time.Time // when it came, by ours
}

// maxListing bounds one answer.
const (
	maxListing   = 64 << 20
	accountsPath = "/api/v1/accounts"
)

// accounts asks once. What goes wrong is told so that the reader knows what to
// do about it.
func (a *adminListener) accounts(ctx context.Context) (*listing, error) {
	text, at, err := a.ask(ctx, http.MethodGet, accountsPath, nil)
	if err != nil {
		return nil, err
	}
	l := &listing{text: text, at: at, got: time.Now()}
	nameless := func(account history.Account) bool { return account.Name == "" }
	if err := json.Unmarshal(l.text, &l.accounts); err != nil || slices.ContainsFunc(l.accounts, nameless) {
		return nil, fmt.Errorf("%s is not the admin listener of a Weir: its answer to %s is no list of accounts", a.base, accountsPath)
	}
	return l, nil
}

// budgetView shows listings.
type budgetView struct {
	admin         adminListener
	json, all     bool
	out, problems io.Writer
	terminal      bool
}

func (v *budgetView) once(ctx context.Context) error {
	l, err := v.admin.accounts(ctx)
	if err != nil {
		return err
	}
	return v.print(l)
}

// print writes a listing below what stands there already.
func (v *budgetView) print(l *listing) error {
	text := strings.Join(v.table(l.accounts, l.at), "\n") + "\n"
	if v.json {
		text = inert(l.text)
	}
	_, err := io.WriteString(v.out, text)
	return err
}

// What a terminal is told: another screen than the one with the shell on it,
// no cursor, long lines cut and not wrapped; and all of it back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// watch shows a listing in every interval until ctx ends, which is no mistake.
// The first question must be answered; afterwards the gateway may be away for
// a while. On a terminal each listing stands in the place of the last, and the
// last one stays.
func (v *budgetView) watch(ctx context.Context, interval time.Duration) (err error) {
	last, err := v.admin.accounts(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	redraw := v.terminal && !v.json
	if redraw {
		if _, err := io.WriteString(v.out, enterScreen); err != nil {
			return err
		}
		defer func() {
			_, failed := io.WriteString(v.out, leaveScreen)
			err = cmp.Or(err, failed, v.print(last))
		}()
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var trouble, told error
	for ctx.Err() == nil {
		switch {
		case redraw:
			err = v.redraw(last, trouble)
		case trouble == nil:
			err = v.append(last)
		case told == nil:
			_, err = fmt.Fprintf(v.problems, "weir: %v; asking again every %s\n", trouble, interval)
		}
		if err != nil {
			return err
		}
		told = trouble
		select {
		case <-ctx.Done():
		case <-ticker.C:
			var next *listing
			if next, trouble = v.admin.accounts(ctx); trouble == nil {
				last = next
			}
		}
	}
	return nil
}

// unlessEnded is err, or nothing where ctx has ended and caused it.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// append prints one listing of many.
func (v *budgetView) append(l *listing) error {
	if v.json {
		return v.print(l)
	}
	if _, err := io.WriteString(v.out, v.title(l.at)+"\n"); err != nil {
		return err
	}
	if err := v.print(l); err != nil {
		return err
	}
	_, err := io.WriteString(v.out, "\n")
	return err
}

func (v *budgetView) title(at time.Time) string {
	return v.admin.base + ", " + at.UTC().Format(time.DateTime) + " UTC"
}

// redraw puts a listing in the place of the last one. Every line goes to a row
// by its number, so one that has no row scrolls nothing away; lines that were
// longer are cleared behind, and rows that are left over below.
func (v *budgetView) redraw(l *listing, trouble error) error {
	now := l.at.Add(time.Since(l.got))
	lines := []string{v.title(now) + "; Ctrl-C ends"}
	if trouble != nil {
		lines = append(lines, fmt.Sprintf("for %s now: %v", inWords(time.Since(l.got)), trouble))
	}
	lines = append(append(lines, ""), v.table(l.accounts, now)...)
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[K", i+1, line)
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(v.out, b.String())
	return err
}
