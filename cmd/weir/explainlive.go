package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/proxy"
)

const (
	// lastRequest stands for the request that ended last, of those that a client sent.
	lastRequest = "last"
	// maxTold bounds one line of what is told, in characters.
	maxTold = 1000
)

// live tells what became of a request, as the running gateway remembers it.
func (c *explainCommand) live(p *process) error {
	listener, closing, err := c.listener(p)
	if err != nil {
		return err
	}
	defer closing()
	list, err := listener.requests(p.ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list, func(r history.Request) bool { return c.Live == lastRequest && !r.Background || r.ID == c.Live })
	if at < 0 {
		return &exit{exitFailure, fmt.Sprintf("%s is none of the last %d requests that this gateway has answered; another replica may have", c.Live, len(list))}
	}
	return printRequest(p.stdout, &list[at])
}

// requests are the last requests, the newest first.
func (a *adminListener) requests(ctx context.Context) (list []history.Request, err error) {
	const path = "/api/v1/requests"
	text, _, err := a.ask(ctx, http.MethodGet, path, nil)
	if err == nil {
		if err = json.Unmarshal(text, &list); err != nil {
			err = fmt.Errorf("%s is not the admin listener of a Weir: its answer to %s is no list of requests", a.base, path)
		}
	}
	return list, err
}

// printRequest prints a request and its journey, all of it printable.
func printRequest(out io.Writer, r *history.Request) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	spent := ""
	if r.Spent > 0 {
		spent = strconv.Itoa(r.Spent) + " of " + r.Resource
	}
	for _, row := range [][2]string{
		{"request", r.ID},
		{"began", r.Start.UTC().Format(time.RFC3339Nano)},
		{"call", r.Method + " " + r.Route},
		{"operation", r.Operation},
		{"client", r.Client},
		{"account", r.Account},
		{"answer", fmt.Sprintf("%d in %s, %d bytes", r.Status, shortly(r.Elapsed), r.Bytes)},
		{"result", string(r.Result)},
		{"why", r.Why},
		{"cache-status", r.Cache},
		{"spent", spent},
		{"error", r.Error},
		{"trace", r.Trace},
	} {
		if row[1] != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", row[0], bounded(row[1], maxTold))
		}
	}
	for _, s := range r.Stages {
		_, _ = fmt.Fprintf(w, "after %s\t%s\n", shortly(s.Start), bounded(stageLine(s), maxTold))
	}
	return w.Flush()
}

// stageLine is a stage in words: what, how long, and why or what came of it.
func stageLine(s proxy.Stage) string {
	line := s.Name + " " + shortly(s.Elapsed)
	if s.Detail != "" {
		line += ": " + s.Detail
	}
	if s.Failed {
		line += ", in vain"
	}
	return line
}
