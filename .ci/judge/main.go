// Command judge runs "weir judge" for Weir and for the limiters that programs use instead, with one program and with
// three programs that share a token. It prints Markdown tables. With -write FILE, it puts the tables between the marks
// in FILE. "make judge" builds the programs and runs the command.
//
// All limiters run at the same time, each with its own upstream. The command fails if Weir exceeds a limit.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/judge"
	"github.com/weirgate/weir/internal/testservers"
)

const (
	weir      = "bin/weir"
	octokit   = "bin/judge/octokit/worker.mjs"
	goGitHub  = "bin/judge/go-github"
	gateway   = "Weir"
	beginMark = "<!-- begin figures -->\n"
	endMark   = "<!-- end figures -->"
)

// limiter is one row of the tables.
type limiter struct {
	name string
	// command performs the tasks. Without a command, the judge's own client sends the tasks.
	command []string
	target  func(addresses) string   // URL for the judge's client
	server  func(addresses) []string // command of the limiter's server, or nil
	env     func(addresses) string   // variable of the command, or nil
	several bool                     // only with several programs
}

// addresses are the addresses of the servers of one run.
type addresses struct{ upstream, server string }

func limiters() []limiter {
	return []limiter{
		{name: "none: waits for `Retry-After`", target: func(a addresses) string { return "http://" + a.upstream }},
		{name: "go-github's own checks", command: []string{goGitHub}},
		{name: "the same, and a second between creations", command: []string{goGitHub, "paced"}},
		{name: "go-github with gofri/go-github-ratelimit", command: []string{goGitHub, "gofri"}},
		{name: "octokit with plugin-throttling and -retry", command: []string{"node", octokit}},
		{
			name: "octokit, with a queue in Redis", command: []string{"node", octokit}, several: true,
			env: func(a addresses) string { return "JUDGE_REDIS=redis://" + a.server },
			server: func(a addresses) []string {
				_, port, _ := net.SplitHostPort(a.server)
				return []string{"redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"}
			},
		},
		{
			name: gateway, target: func(a addresses) string { return "http://" + a.server },
			server: func(a addresses) []string {
				return []string{weir, "serve", "--config", ".ci/judge/weir.yaml", "--upstream", "http://" + a.upstream, "--listen", a.server, "--admin", "127.0.0.1:0"}
			},
		},
	}
}

func main() {
	write := flag.String("write", "", "put the tables between the marks in this `file`")
	flag.Parse()
	if err := run(*write); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

func run(write string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var text strings.Builder
	for _, programs := range []int{1, 3} {
		table, err := compare(ctx, programs)
		if err != nil {
			return err
		}
		fmt.Print(table)
		text.WriteString(table)
	}
	if write == "" {
		return nil
	}
	page, err := os.ReadFile(write)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(page), beginMark)
	_, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		return fmt.Errorf("write %s: no place for the tables; add the lines %s and %s", write, strings.TrimSpace(beginMark), endMark)
	}
	return os.WriteFile(write, []byte(before+beginMark+text.String()+"\n"+endMark+after), 0o644)
}

// compare scores all limiters and returns a table.
func compare(ctx context.Context, programs int) (string, error) {
	rows := slices.DeleteFunc(limiters(), func(l limiter) bool { return l.several && programs == 1 })
	scores, problems := make([]judge.Score, len(rows)), make([]error, len(rows))
	var running sync.WaitGroup
	for i, l := range rows {
		running.Go(func() { scores[i], problems[i] = l.score(ctx, programs) })
	}
	running.Wait()
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	var table strings.Builder
	fmt.Fprintf(&table, "\n### %s\n\n", map[int]string{1: "One program", 3: "Three programs with one token"}[programs])
	table.WriteString("| limiter | violations | sent while limited | limit errors | core used | searches used | content used |\n|---|---|---|---|---|---|---|\n")
	for i, l := range rows {
		s := scores[i]
		limited := strconv.Itoa(s.SentWhileLimited)
		if s.Banned {
			limited += ", banned"
		}
		fmt.Fprintf(&table, "| %s | %d | %s | %d | %d %% | %d %% | %d %% |\n",
			l.name, s.Violations, limited, s.LimitErrors, s.Core.Share(), s.Search.Share(), s.Content.Share())
		if s.Core.Answered == 0 {
			problems[i] = fmt.Errorf("%s: no task succeeded", l.name)
		}
		if l.name == gateway && s.Violations+s.SentWhileLimited > 0 {
			problems[i] = fmt.Errorf("%s exceeded limits: %+v", l.name, s)
		}
	}
	return table.String(), errors.Join(problems...)
}

// score starts the servers of the limiter, runs "weir judge" and returns its score.
func (l limiter) score(ctx context.Context, programs int) (score judge.Score, err error) {
	var a addresses
	for _, address := range []*string{&a.upstream, &a.server} {
		if *address, err = testservers.FindAddress(); err != nil {
			return score, err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if l.server != nil {
		server, err := start(ctx, a.server, l.server(a))
		if err != nil {
			return score, fmt.Errorf("%s: %w", l.name, err)
		}
		defer func() {
			stop()
			_ = server.Wait() // the exit status of a stopped server does not matter
		}()
	}
	args := []string{"judge", "--json", "--listen", a.upstream, "--programs", strconv.Itoa(programs), "--"}
	if l.target != nil {
		args = append(args, l.target(a))
	}
	process := exec.CommandContext(ctx, weir, append(args, l.command...)...)
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) } // so that it stops its command
	process.WaitDelay = 15 * time.Second
	if l.env != nil {
		process.Env = append(process.Environ(), l.env(a))
	}
	var out, problems bytes.Buffer
	process.Stdout, process.Stderr = &out, &problems
	if err := process.Run(); err != nil {
		return score, fmt.Errorf("%s: %w: %s", l.name, err, problems.String())
	}
	return score, json.Unmarshal(out.Bytes(), &score)
}

// start starts a server, with its output in bin/judge, and waits until it accepts connections.
func start(ctx context.Context, address string, command []string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join("bin/judge", filepath.Base(command[0])+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return process, c.Close()
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("start %s: %w; see %s", command[0], err, log.Name())
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
