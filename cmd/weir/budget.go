package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/limits"
)

type budgetCommand struct {
	Admin    string            `default:"127.0.0.1:9090" help:"The gateway's admin listener: an address or a URL." placeholder:"ADDRESS"`
	Token    credential.Secret `help:"Its token, where it asks for one. Better in WEIR_ADMIN_TOKEN, where no list of processes shows it." placeholder:"TOKEN"`
	All      bool              `help:"Untouched budgets too."`
	Watch    bool              `help:"Ask again and again, until Ctrl-C."`
	Interval time.Duration     `default:"1s" help:"How often, with --watch."`
	JSON     bool              `name:"json" help:"The answer of the admin listener as it is."`
}

// Run shows what each account has left.
func (c *budgetCommand) Run(p *process) error {
	base, err := adminURL(c.Admin)
	if err != nil {
		return &exit{exitUsage, "--admin: " + err.Error()}
	}
	if c.Interval <= 0 {
		return &exit{exitUsage, fmt.Sprintf("--interval: %s: must be more than 0", c.Interval)}
	}
	token, err := c.token(p)
	if err != nil {
		return &exit{exitUsage, err.Error()}
	}
	// The listener is near: no proxy has to see the token.
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	v := &budgetView{
		admin: adminListener{transport, base, token}, json: c.JSON, all: c.All,
		out: p.stdout, problems: p.stderr, terminal: isTerminal(p.stdout) && !isDumb(p.getenv),
	}
	if c.Watch {
		return v.watch(p.ctx, c.Interval)
	}
	return v.once(p.ctx)
}

// tokenVariable is where the admin token stands in the environment.
const tokenVariable = "WEIR_ADMIN_TOKEN"

// token is the one given, or that of the environment.
func (c *budgetCommand) token(p *process) (credential.Secret, error) {
	token := c.Token.Reveal()
	if fromEnv, ok := p.getenv(tokenVariable); ok && token == "" {
		token = fromEnv
	}
	token = strings.TrimSpace(token)
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("the token holds a blank, a line break or another character that a token cannot have")
	}
	return credential.Secret(token), nil
}

// adminURL reads what stands for an admin listener: host:port, as in
// admin.listen, or a URL.
func adminURL(address string) (string, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && !strings.Contains(address, "/") && port != "" {
		address = "http://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
	}
	if strings.Contains(address, "@") {
		return "", errors.New("holds a user name: the token goes into " + tokenVariable + ", or --token")
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: write host:port, or a URL such as http://127.0.0.1:9090", address)
	}
	return strings.TrimRight(u.String(), "/"), nil
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

// adminListener is the admin listener of a gateway.
type adminListener struct {
	transport http.RoundTripper
	base      string // URL without a slash at its end
	token     credential.Secret
}

// listing is an answer of the admin listener.
type listing struct {
	text     []byte
	accounts []limits.Account
	at       time.Time // when it was made, by the gateway's clock
	got      time.Time // when it came, by ours
}

// Bounds of one question.
const (
	adminPatience = 5 * time.Second
	maxListing    = 64 << 20
	accountsPath  = "/api/v1/accounts"
)

// accounts asks once. What goes wrong is told so that the reader knows what to
// do about it.
func (a *adminListener) accounts(ctx context.Context) (*listing, error) {
	ctx, cancel := context.WithTimeout(ctx, adminPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+accountsPath, nil)
	if err != nil {
		return nil, err
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token.Reveal())
	}
	resp, err := a.transport.RoundTrip(req) // no redirect takes the token elsewhere
	if err != nil {
		return nil, a.unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }() // read already
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxListing+1))
	if err != nil {
		return nil, a.unreachable(err)
	}
	l := &listing{text: text, got: time.Now()}
	if l.at, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		l.at = l.got
	}
	return l, a.understand(resp, l)
}

// understand reads the accounts, or says what it is that answers.
func (a *adminListener) understand(resp *http.Response, l *listing) error {
	switch {
	case resp.Header.Get("Weir-Request-Id") != "":
		return fmt.Errorf("%s is where the gateway answers its clients; the admin listener has an address of its own, in the configuration at admin.listen", a.base)
	case resp.StatusCode == http.StatusUnauthorized && a.token == "":
		return fmt.Errorf("%s asks for the admin token: set %s, or give --token", a.base, tokenVariable)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s does not take this token; it stands in the gateway's configuration at admin.token", a.base)
	case resp.StatusCode >= http.StatusInternalServerError:
		line, _, _ := strings.Cut(string(l.text), "\n")
		return fmt.Errorf("%s answers %d: %s", a.base, resp.StatusCode, bounded(line, 300))
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s is not the admin listener of a Weir: it answers %d to %s", a.base, resp.StatusCode, accountsPath)
	}
	nameless := func(account limits.Account) bool { return account.Name == "" }
	if err := json.Unmarshal(l.text, &l.accounts); err != nil || slices.ContainsFunc(l.accounts, nameless) {
		return fmt.Errorf("%s is not the admin listener of a Weir: its answer to %s is no list of accounts", a.base, accountsPath)
	}
	return nil
}

// unreachable says why there was no answer.
func (a *adminListener) unreachable(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses the connection: is the gateway running, and is this its admin address (--admin)?", a.base)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer within %s", a.base, adminPatience)
	}
	return fmt.Errorf("%s does not answer: %s", a.base, printable(err.Error()))
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
