package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/judge"
)

type judgeCommand struct {
	Target   []string `arg:"" placeholder:"URL|COMMAND" help:"URL of a proxy with the judge as its upstream. Or, after --, a command that sends the tasks of its standard input to WEIR_JUDGE_URL."`
	Listen   string   `default:"127.0.0.1:9000" help:"Address of the upstream that counts the limits."`
	Programs int      `default:"1" help:"Number of programs that share one token, at most 20."`
	JSON     bool     `name:"json" help:"Print the score as a JSON object."`
}

// Run starts the upstream, runs the programs or sends their tasks through the proxy, and prints the score.
func (c *judgeCommand) Run(p *process) error {
	if c.Programs < 1 || c.Programs > 20 {
		return &exit{exitUsage, fmt.Sprintf("--programs: %d: must be 1 to 20", c.Programs)}
	}
	isURL := strings.Contains(c.Target[0], "://")
	if isURL {
		u, err := url.Parse(c.Target[0])
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return &exit{exitUsage, fmt.Sprintf("%q: must be http://HOST or https://HOST", c.Target[0])}
		}
		if len(c.Target) > 1 {
			return &exit{exitUsage, fmt.Sprintf("unexpected %q after the URL of the proxy", c.Target[1])}
		}
	} else if _, err := exec.LookPath(c.Target[0]); err != nil {
		return &exit{exitUsage, fmt.Sprintf("%v; give a program, or the URL of a proxy such as http://127.0.0.1:8080", err)}
	}
	upstream, err := judge.NewUpstream()
	if err != nil {
		return err
	}
	defer upstream.Close()
	listener, err := listenTCP("--listen", c.Listen)
	if err != nil {
		return fmt.Errorf("start the upstream: %w; choose another address with --listen, and in the proxy", err)
	}
	serving, stop := context.WithCancel(p.ctx)
	stopped := make(chan error, 1)
	go func() {
		stopped <- serveAll(serving, slog.New(slog.NewTextHandler(p.stderr, nil)), noDrain, endpoint{listener: listener, handler: upstream})
	}()
	if isTerminal(p.stderr) {
		_, _ = fmt.Fprintf(p.stderr, "judging for %s\n", durations.Text(judge.Duration))
	}
	score, err := c.run(p, upstream, "http://"+listener.Addr().String(), isURL)
	stop()
	if serveErr := <-stopped; err == nil {
		err = serveErr
	}
	if err != nil {
		return err
	}
	return c.print(p, score)
}

// run runs the programs, or sends their tasks through the proxy, and returns the score.
func (c *judgeCommand) run(p *process, upstream *judge.Upstream, address string, isURL bool) (score judge.Score, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, judge.Duration)
	defer cancel()
	began, limitErrors := time.Now(), 0
	if isURL {
		// A request may wait for quota in the proxy until the run ends.
		client := &http.Client{Timeout: judge.Duration, Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
		defer client.CloseIdleConnections()
		if err := judge.Probe(ctx, client, c.Target[0], upstream, address); err != nil {
			return score, err
		}
		began = time.Now()
		limitErrors, err = judge.Load(ctx, client, c.Target[0], c.Programs)
	} else {
		err = judge.Run(ctx, c.Target, address, c.Programs, p.stderr)
	}
	if err != nil {
		return score, err
	}
	if p.ctx.Err() != nil {
		return score, fmt.Errorf("interrupted: a score needs a whole run of %s", durations.Text(judge.Duration))
	}
	score = upstream.Score(c.Programs, time.Since(began))
	if isURL {
		score.LimitErrors = limitErrors
	}
	return score, nil
}

// print prints the score as lines, or as JSON.
func (c *judgeCommand) print(p *process, s judge.Score) error {
	if c.JSON {
		return json.NewEncoder(p.stdout).Encode(s)
	}
	var limits []string
	for _, name := range slices.Sorted(maps.Keys(s.ByLimit)) {
		limits = append(limits, fmt.Sprintf("%s %d", name, s.ByLimit[name]))
	}
	p.printf("programs       %d, for %ds\n", s.Programs, s.Seconds)
	p.printf("violations     %s\n", strings.TrimSpace(fmt.Sprintf("%d  %s", s.Violations, strings.Join(limits, ", "))))
	p.printf("while limited  %d\n", s.SentWhileLimited)
	p.printf("limit errors   %d\n", s.LimitErrors)
	p.printf("banned         %t\n", s.Banned)
	for _, l := range []struct {
		name string
		use  judge.Use
	}{{"core", s.Core}, {"search", s.Search}, {"content", s.Content}} {
		p.printf("%-13s  %d of %d (%d %%)\n", l.name, l.use.Answered, l.use.Allowed, l.use.Share())
	}
	return nil
}
