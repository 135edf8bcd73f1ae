package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/replay"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/wire"
)

type replayCommand struct {
	Logs   []string `arg:"" name:"log" help:"Access logs, such as the standard error of weir serve, JSON lines of another proxy, or a HAR file." placeholder:"LOG"`
	Config string   `required:"" help:"Configuration file to try." placeholder:"FILE"`
	Format string   `default:"auto" enum:"auto,weir,jsonl,har" help:"Format of the logs: auto (recognizes the others), weir (standard error of weir serve, text or JSON), jsonl (one JSON object for each request) or har."`
	JSON   bool     `help:"Print JSON."`
	HTML   string   `help:"Also write a page with charts to this file." placeholder:"FILE"`
	Skip   bool     `name:"skip-invalid" help:"Skip and count malformed lines."`
}

// Run predicts what a gateway with the configuration would do with the requests of the logs.
func (c *replayCommand) Run(p *process) error {
	cfg, err := config.Load(config.Source{Path: c.Config, Getenv: p.getenv})
	if err != nil {
		return err
	}
	replayed, err := replayConfig(cfg)
	if err != nil {
		return err
	}
	var logs []*replay.Log
	for _, name := range c.Logs {
		file, err := os.Open(name)
		if err != nil {
			return &exit{exitUsage, "read log: " + err.Error() + "; give the path of an access log"}
		}
		defer func() { _ = file.Close() }()
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return &exit{exitUsage, "read log " + name + ": is a directory; give the path of an access log"}
		}
		logs = append(logs, &replay.Log{Name: name, Reader: file, Format: replay.Format(c.Format), SkipInvalid: c.Skip})
	}
	if isTerminal(p.stderr) {
		replayed.Progress = func(requests int) { _, _ = fmt.Fprintf(p.stderr, "\r%d requests", requests) }
		defer func() { _, _ = fmt.Fprint(p.stderr, "\r\033[K") }()
	}
	report, err := replay.Run(p.ctx, replayed, replay.Ordered(logs...))
	if err != nil {
		return err
	}
	for _, l := range logs {
		report.Skipped += l.Skipped
	}
	if c.HTML != "" {
		if err := writeReplayPage(c.HTML, report); err != nil {
			return err
		}
	}
	if c.JSON {
		return printJSON(p, report)
	}
	return printReplay(p.stdout, report)
}

// replayConfig returns the parts of a configuration that a replay needs.
func replayConfig(c *config.Config) (replay.Config, error) {
	upstream, dialect := c.Upstream.Base(), c.Upstream.MustDialect()
	catalogue, err := c.Catalogue()
	if err != nil {
		return replay.Config{}, err
	}
	log := slog.New(slog.DiscardHandler)
	offline := &gateway{ // has only the parts that registry uses, and sends nothing
		credentialHealth: credential.NewHealth(log), appTokens: credential.NewAppTokens(wire.NewTransport(), nil, log),
	}
	offline.hashKeys.Store(&hashKeys{current: credential.NewHashKey()})
	registry, err := offline.registry(c, upstream, dialect)
	if err != nil {
		return replay.Config{}, err
	}
	return replay.Config{
		Upstream: upstream, Unlimited: !bool(c.Upstream.Limits), Rules: limitRules(c), Catalogue: catalogue, Dialect: dialect,
		Wait: c.Limits.Wait, CacheBytes: int64(c.Cache.Memory), Webhooks: c.Webhooks.Secret != "", WebhookFresh: c.Webhooks.Fresh,
		Statistics: proxy.Statistics{
			First: c.Statistics.Poll.First, Factor: c.Statistics.Poll.Factor, Max: c.Statistics.Poll.Max, Budget: c.Statistics.Poll.Budget,
		},
		Identify: replayIdentify(c, registry),
	}, nil
}

// replayIdentify returns a function that finds the caller of a request in a log. A client that the configuration does not
// name gets a separate account.
func replayIdentify(c *config.Config, registry *credential.Registry) func(*replay.Request) (*caller.Identity, bool) {
	return func(r *replay.Request) (*caller.Identity, bool) {
		name := r.Client
		if name == "" && r.Account == "" && len(c.Clients) == 1 {
			name = c.Clients[0].Name
		}
		if id := registry.Client(name); id != nil {
			return id, true
		}
		if strings.HasPrefix(r.Account, "egress:") {
			return &caller.Identity{Caller: registry.Anonymous()}, true
		}
		account := cmp.Or(name, r.Account, "(no client)")
		return &caller.Identity{Caller: policy.Caller{Kind: policy.User, Account: account, Class: account}}, false
	}
}

func writeReplayPage(name string, report *replay.Report) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	if err := errors.Join(report.Page(file), file.Close()); err != nil {
		return fmt.Errorf("write page %s: %w", name, err)
	}
	return nil
}

// printReplay prints a report as tables.
func printReplay(out io.Writer, r *replay.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) } // Flush returns the error
	more := func(rows int) {
		if rows > replay.MaxRows {
			line("%d more; --json prints all", rows-replay.MaxRows)
		}
	}
	line("%s from %s to %s", count(r.Requests, "request"), r.From.UTC().Format(time.DateTime), r.To.UTC().Format(time.DateTime+" UTC"))
	bound := ""
	if r.WithoutETag > 0 {
		bound = "at most "
	}
	line("quota: %d without Weir, %d with Weir, %s%s %% saved", r.Without, r.Spent, bound, strconv.FormatFloat(r.Saved(), 'f', 1, 64))
	line("cache: %s, %d collapsed, %d validated without quota, %d forwarded, %d answered by Weir", count(r.Hits, "hit"), r.Collapsed, r.Validated,
		r.Forwarded, r.Own)
	line("limits: %d refused, %d waited (p50 %s, p99 %s, total %s)", r.Refused, r.Waited, waitText(r.WaitP50), waitText(r.WaitP99), waitText(r.WaitTotal))
	if r.Forbidden > 0 {
		line("scopes: %d refused", r.Forbidden)
	}
	for _, note := range r.Notes() {
		line("note: %s", printable(note, maxReplayNote))
	}
	line("\nACCOUNT\tRESOURCE\tWITHOUT WEIR\tWITH WEIR")
	for _, a := range r.Accounts[:min(replay.MaxRows, len(r.Accounts))] {
		line("%s\t%s\t%d\t%d", printable(a.Account, maxReplayName), printable(a.Resource, maxReplayName), a.Without, a.Spent)
	}
	more(len(r.Accounts))
	for _, table := range []struct {
		title string
		rows  []replay.Row
	}{{"CLIENT", r.Clients}, {"OPERATION", r.Operations}} {
		line("\n%s\tREQUESTS\tHITS\tCOLLAPSED\tVALIDATED\tREFUSED\tWAIT P99\tWITHOUT\tWITH", table.title)
		for _, row := range table.rows[:min(replay.MaxRows, len(table.rows))] {
			line("%s\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%d", printable(row.Name, maxReplayName), row.Requests, row.Hits, row.Collapsed, row.Validated,
				row.Refused, waitText(row.WaitP99), row.Without, row.Spent)
		}
		more(len(table.rows))
	}
	return w.Flush()
}

// These constants bound texts of the log in a terminal.
const (
	maxReplayName = 34
	maxReplayNote = 160
)

func waitText(seconds float64) string {
	return durations.Text(time.Duration(seconds * float64(time.Second)))
}
