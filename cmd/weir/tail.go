package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/history"
)

type tailCommand struct {
	adminFlags
	Client    string `help:"Only requests of this client. For clients without a name, give the account or its label." placeholder:"NAME"`
	Operation string `help:"Only this operation, as in gitignore/get-template." placeholder:"ID"`
	Status    string `help:"Only responses with this status: 429, or 4xx." placeholder:"STATUS"`
	Cache     string `help:"Only this result: hit, stale, validated, miss, waited, refused, limited or error." placeholder:"RESULT"`
	JSON      bool   `name:"json" help:"Print one JSON object for each request."`
}

var statusPattern = regexp.MustCompile(`^[1-5]([0-9]{2}|xx)$`)

// Run prints each completed request, until Ctrl-C.
func (c *tailCommand) Run(p *process) error {
	if c.Status != "" && !statusPattern.MatchString(c.Status) {
		return &exit{exitUsage, fmt.Sprintf("--status: %q: write a status such as 429, or a class such as 4xx", c.Status)}
	}
	if c.Cache != "" && !slices.Contains(history.Results(), history.Result(c.Cache)) {
		return &exit{exitUsage, fmt.Sprintf("--cache: %q: use %s", c.Cache, choices(history.Results()))}
	}
	admin, err := c.client(p)
	if err != nil {
		return err
	}
	v := &tailView{tailCommand: c, admin: admin, out: p.stdout, problems: p.stderr}
	return v.follow(p.ctx)
}

// selects reports whether the flags select a request.
func (c *tailCommand) selects(r *history.Request) bool {
	status := strconv.Itoa(r.Status)
	return (c.Client == "" || c.Client == cmp.Or(r.Client, r.Account) || r.Client == "" && c.Client == r.AccountLabel) &&
		(c.Operation == "" || c.Operation == r.Operation) &&
		(c.Status == "" || c.Status == status || strings.HasSuffix(c.Status, "xx") && c.Status[0] == status[0]) &&
		(c.Cache == "" || history.Result(c.Cache) == r.Result)
}

// tailView prints the requests that a gateway reports as server-sent events.
type tailView struct {
	*tailCommand
	admin         *adminClient
	out, problems io.Writer
	lastID        string // of the last event
}

const (
	firstPause = time.Second // before the next connection; doubled after each failure
	maxPause   = 15 * time.Second
	// maxSilence is the time without data after which a stream counts as broken. The admin
	// listener sends a comment every 15 seconds.
	maxSilence = 45 * time.Second
	maxEvent   = 1 << 20 // bytes of a line
)

var (
	errSilent = fmt.Errorf("no data received for %s", maxSilence)
	errEnded  = errors.New("the gateway closed the stream")
	errOutput = errors.New("write output")
)

// follow prints requests until ctx ends, which is not an error. If the first connection fails, follow returns its
// error. Later, follow reconnects after each failure.
func (v *tailView) follow(ctx context.Context) error {
	pause := firstPause
	for first := true; ; first = false {
		connected, err := v.stream(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user ended the command
		case errors.Is(err, errOutput), first && !connected:
			return err
		case connected:
			pause = firstPause
		}
		_, _ = fmt.Fprintf(v.problems, "weir: %v; retrying in %s\n", err, pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

// stream connects and prints requests until the connection ends. It reports whether the connection was established, and
// returns the reason for its end.
func (v *tailView) stream(ctx context.Context) (connected bool, err error) {
	const path = "/api/v1/events?only=request"
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	connecting := time.AfterFunc(callTimeout, func() { cancel(context.DeadlineExceeded) })
	header := http.Header{}
	if v.lastID != "" {
		header.Set("Last-Event-ID", v.lastID)
	}
	resp, err := v.admin.send(ctx, http.MethodGet, path, nil, header)
	connecting.Stop()
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	silence := time.AfterFunc(maxSilence, func() { cancel(errSilent) })
	defer silence.Stop()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
		return false, cmp.Or(v.admin.checkResponse(resp, path, text), v.admin.unexpectedContent(path))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	var event, id string
	for lines.Scan() {
		silence.Reset(maxSilence)
		switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
		case "event":
			event = value
		case "id":
			id = value
		case "data":
			v.lastID = id
			if err := v.print(event, []byte(value)); err != nil {
				return true, fmt.Errorf("%w: %w", errOutput, err)
			}
		}
	}
	return true, cmp.Or(context.Cause(ctx), lines.Err(), errEnded)
}

// print prints one event, if the flags select it.
func (v *tailView) print(event string, data []byte) error {
	switch event {
	case "request":
		var r history.Request
		if json.Unmarshal(data, &r) != nil || !v.selects(&r) {
			return nil //nolint:nilerr // an event of another version is skipped
		}
		line := requestLine(&r)
		if v.JSON {
			line = strings.TrimSuffix(printableJSON(data), "\n")
		}
		_, err := fmt.Fprintln(v.out, line)
		return err
	case "skipped":
		var s history.Skipped
		if json.Unmarshal(data, &s) == nil {
			_, _ = fmt.Fprintf(v.problems, "weir: %d requests are missing: they were too many, or ended while disconnected\n", s.Requests)
		}
	}
	return nil
}

// requestLine formats a request as one printable line.
func requestLine(r *history.Request) string {
	client := cmp.Or(r.Client, r.AccountLabel, r.Account, "-")
	if r.Background {
		client = "(background)"
	}
	cache := strings.TrimPrefix(printable(cmp.Or(r.Cache, "-"), maxName), "weir; ")
	if r.Spent > 1 {
		cache += "  spent=" + strconv.Itoa(r.Spent)
	}
	if r.Tag != "" {
		cache += "  tag=" + printable(r.Tag, maxName)
	}
	return strings.TrimRight(fmt.Sprintf("%s  %3d  %-9s %8s  %-16s %-7s %-40s %s",
		r.Start.Add(r.Elapsed).UTC().Format("15:04:05.000"), r.Status, r.Result, durations.Text(r.Elapsed), printable(client, maxName),
		r.Method, printable(r.OperationName(), maxName), cache), " ")
}
