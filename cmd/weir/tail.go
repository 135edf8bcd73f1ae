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

	"github.com/weirgate/weir/internal/history"
)

type tailCommand struct {
	adminFlags
	Client    string `help:"Only what this client asks; of those without a name, this account." placeholder:"NAME"`
	Operation string `help:"Only this operation, as in gitignore/get-template." placeholder:"ID"`
	Status    string `help:"Only answers with this status: 429, or 4xx." placeholder:"STATUS"`
	Cache     string `help:"Only what came to this: hit, stale, validated, miss, waited, refused, error." placeholder:"RESULT"`
	JSON      bool   `name:"json" help:"One JSON object a line, as the admin listener tells it."`
}

// statusWanted is a status, or a class of them.
var statusWanted = regexp.MustCompile(`^[1-5]([0-9]{2}|xx)$`)

// Run prints each request when it has ended, until Ctrl-C.
func (c *tailCommand) Run(p *process) error {
	if err := c.valid(); err != nil {
		return &exit{exitUsage, err.Error()}
	}
	listener, closing, err := c.listener(p)
	if err != nil {
		return err
	}
	defer closing()
	v := &tailView{admin: listener, tailCommand: c, out: p.stdout, problems: p.stderr}
	return v.follow(p.ctx)
}

func (c *tailCommand) valid() error {
	if c.Status != "" && !statusWanted.MatchString(c.Status) {
		return fmt.Errorf("--status: %q: write a status such as 429, or a class such as 4xx", c.Status)
	}
	results := []history.Result{history.Hit, history.Stale, history.Validated, history.Miss, history.Waited, history.Refused, history.Failed}
	if c.Cache != "" && !slices.Contains(results, history.Result(c.Cache)) {
		return fmt.Errorf("--cache: %q: must be one of %v", c.Cache, results)
	}
	return nil
}

// shows reports whether a request is one of those that are looked for.
func (c *tailCommand) shows(r *history.Request) bool {
	status := strconv.Itoa(r.Status)
	return (c.Client == "" || c.Client == cmp.Or(r.Client, r.Account)) &&
		(c.Operation == "" || c.Operation == r.Operation) &&
		(c.Status == "" || c.Status == status || strings.HasSuffix(c.Status, "xx") && c.Status[0] == status[0]) &&
		(c.Cache == "" || history.Result(c.Cache) == r.Result)
}

// tailView shows what happens.
type tailView struct {
	*tailCommand
	admin         adminListener
	out, problems io.Writer
	last          string // ID of the last event
}

// How long is waited before the listener is asked again, and for how long it may be
// silent: it gives a sign of life every 15 seconds.
const (
	firstPause  = time.Second
	longestRest = 15 * time.Second
	silence     = 45 * time.Second
)

// errSilent ends a stream from which nothing comes, not even a sign of life.
var errSilent = fmt.Errorf("nothing came for %s", silence)

// maxEvent bounds one line of the stream, in bytes.
const maxEvent = 1 << 20

// follow prints until ctx ends, which is no mistake. The first question must be
// answered; afterwards the gateway may be away for a while.
func (v *tailView) follow(ctx context.Context) error {
	stream, end, err := v.open(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	for pause := firstPause; ctx.Err() == nil; {
		if stream != nil {
			pause = firstPause
			if err = v.read(stream, end); errors.Is(err, errPrint) {
				return unlessEnded(ctx, err)
			}
		}
		if ctx.Err() == nil {
			_, _ = fmt.Fprintf(v.problems, "weir: %v; asking again in %s\n", err, pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			pause = min(2*pause, longestRest)
			stream, end, err = v.open(ctx)
		}
	}
	return nil
}

// Why a stream is read no further.
var (
	errEnded = errors.New("the gateway has ended the stream")
	errPrint = errors.New("cannot be printed")
)

// open begins a stream; read ends it.
func (v *tailView) open(ctx context.Context) (stream io.ReadCloser, end context.CancelCauseFunc, err error) {
	const path = "/api/v1/events?only=request"
	ctx, cancel := context.WithCancelCause(ctx)
	patience := time.AfterFunc(adminPatience, func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.admin.base+path, nil)
	if err != nil {
		cancel(err)
		return nil, nil, err
	}
	if v.admin.token != "" {
		req.Header.Set("Authorization", "Bearer "+v.admin.token.Reveal())
	}
	if v.last != "" {
		req.Header.Set("Last-Event-ID", v.last)
	}
	resp, err := v.admin.transport.RoundTrip(req)
	if err != nil {
		cancel(err)
		return nil, nil, v.admin.unreachable(cmp.Or(context.Cause(ctx), err))
	}
	if resp.StatusCode == http.StatusOK && resp.Header.Get("Content-Type") == "text/event-stream" {
		return resp.Body, cancel, nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxEvent)) // what comes of it is judged
	_ = resp.Body.Close()
	cancel(nil)
	if err := v.admin.understand(resp, path, text); err != nil {
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("%s is not the admin listener of a Weir: its answer to %s is no stream", v.admin.base, path)
}

// read prints what a stream tells until it ends.
func (v *tailView) read(stream io.ReadCloser, end context.CancelCauseFunc) error {
	defer func() { _ = stream.Close() }() // read, or given up
	defer end(nil)
	alive := time.AfterFunc(silence, func() { end(errSilent) })
	defer alive.Stop()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxEvent)
	var event, id string
	for lines.Scan() {
		alive.Reset(silence)
		switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
		case "event":
			event = value
		case "id":
			id = value
		case "data":
			v.last = id
			if err := v.tell(event, []byte(value)); err != nil {
				return err
			}
		}
	}
	return cmp.Or(lines.Err(), errEnded)
}

// tell prints one event, if it is one of those that are looked for.
func (v *tailView) tell(event string, data []byte) error {
	switch event {
	case "request":
		var r history.Request
		if json.Unmarshal(data, &r) == nil && v.shows(&r) {
			return v.print(&r, data)
		}
	case "skipped":
		var s history.Skipped
		if json.Unmarshal(data, &s) == nil {
			_, _ = fmt.Fprintf(v.problems, "weir: %d requests were not told: they came faster than they are read, or while nobody was connected\n", s.Requests)
		}
	}
	return nil
}

func (v *tailView) print(r *history.Request, data []byte) error {
	line := tailLine(r)
	if v.JSON {
		line = inert(data)
	}
	if _, err := fmt.Fprintln(v.out, line); err != nil {
		return fmt.Errorf("%w: %w", errPrint, err)
	}
	return nil
}

// tailLine is a request on one line, all of it printable.
func tailLine(r *history.Request) string {
	what := r.Operation
	if what == "" || what == "unknown" {
		what = r.Route
	}
	who := cmp.Or(r.Client, r.Account, "-")
	if r.Background {
		who = "(background)"
	}
	line := fmt.Sprintf("%s  %3d  %-9s %8s  %-16s %-7s %-40s %s", r.Start.Add(r.Elapsed).UTC().Format("15:04:05.000"), r.Status,
		r.Result, shortly(r.Elapsed), printable(who), r.Method, printable(what), strings.TrimPrefix(printable(cmp.Or(r.Cache, "-")), "weir; "))
	return strings.TrimRight(line, " ")
}

// shortly is a time with three digits or so.
func shortly(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
