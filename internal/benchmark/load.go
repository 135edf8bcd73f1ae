package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// load is what is asked, and by how many at once.
type load struct {
	url         string
	connections int
	fields      []string // "Name: value"
	script      string   // the file by which wrk reports
	args        []string // of the script
}

// measured is what wrk tells of a load.
type measured struct {
	requests, bytes int64
	time, p50, p99  time.Duration
	failures        string // what failed, and how often; empty where nothing did
}

// run sends a load for a time, or for longer where a busy machine lets nothing be
// answered in it.
func (s *stage) run(ctx context.Context, l load, d time.Duration) (measured, error) {
	for {
		m, err := s.runOnce(ctx, l, d)
		if err != nil || m.requests > 0 {
			return m, err
		}
		if d *= 2; d > time.Minute {
			return measured{}, fmt.Errorf("%s: nothing was answered", l.url)
		}
	}
}

// runOnce sends a load for a time. wrk counts whole seconds only, so it is interrupted:
// then it reports, too.
func (s *stage) runOnce(ctx context.Context, l load, d time.Duration) (measured, error) {
	threads := max(1, min(s.cores-1, 4, l.connections))
	args := []string{"-t", strconv.Itoa(threads), "-c", strconv.Itoa(l.connections), "-d", "3600s", "--timeout", "10s", "-s", l.script}
	for _, field := range l.fields {
		args = append(args, "-H", field)
	}
	args = append(args, l.url)
	if len(l.args) > 0 {
		args = append(append(args, "--"), l.args...)
	}
	args = s.elsewhere(append([]string{"wrk"}, args...))
	wrk := exec.CommandContext(ctx, args[0], args[1:]...)
	var out bytes.Buffer
	wrk.Stdout, wrk.Stderr = &out, &out
	if err := wrk.Start(); err != nil {
		return measured{}, err
	}
	if err := interrupted(wrk, d); err != nil {
		return measured{}, fmt.Errorf("wrk: %w: %s", err, out.Bytes())
	}
	return parseMeasured(out.String())
}

// interrupted waits for a process that was started, and interrupts it when it has been
// ready for that for a time.
func interrupted(command *exec.Cmd, d time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	soon := time.NewTicker(5 * time.Millisecond)
	defer soon.Stop()
	var over <-chan time.Time
	for {
		select {
		case err := <-ended:
			return err
		case <-over:
			_ = command.Process.Signal(os.Interrupt) // it may have ended
		case <-soon.C:
			if over == nil && catchesInterrupt(command.Process.Pid) {
				over = time.After(d)
			}
		}
	}
}

// parseMeasured reads the line that report.lua adds to what wrk prints.
func parseMeasured(text string) (measured, error) {
	_, line, found := strings.Cut("\n"+text, "\nmeasured ")
	if !found {
		return measured{}, fmt.Errorf("wrk reports nothing: %q", text)
	}
	line, _, _ = strings.Cut(line, "\n")
	m := measured{}
	var failures []string
	for _, pair := range strings.Fields(line) {
		name, value, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return measured{}, fmt.Errorf("wrk reports %q: %w", line, err)
		}
		switch name {
		case "requests":
			m.requests = n
		case "bytes":
			m.bytes = n
		case "time":
			m.time = time.Duration(n) * time.Microsecond
		case "p50":
			m.p50 = time.Duration(n) * time.Microsecond
		case "p99":
			m.p99 = time.Duration(n) * time.Microsecond
		default:
			if n > 0 {
				failures = append(failures, pair)
			}
		}
	}
	m.failures = strings.Join(failures, " ")
	return m, nil
}

// parseMetric reads a metric from what go test -bench prints.
func parseMetric(text, unit string) (float64, error) {
	words := strings.Fields(text)
	if i := slices.Index(words, unit); i > 0 {
		return strconv.ParseFloat(words[i-1], 64)
	}
	return 0, fmt.Errorf("no %s in %q", unit, text)
}
