// Command weir is the shared egress of an organization to one rate-limited REST
// API: the gateway, the reference service to try it with, and tools around its
// configuration. This package is the only place that wires the parts together;
// each subcommand has a file of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() {
	told, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, end := context.WithCancel(context.Background())
	context.AfterFunc(told, func() {
		stop() // a second signal ends the process at once, from before anything ends by the first
		end()
	})
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// commands is the command line.
type commands struct {
	Demo    demoCommand    `cmd:"" help:"Run everything on this machine: gateway, reference service, sample traffic."`
	Serve   serveCommand   `cmd:"" help:"Run the gateway."`
	Service serviceCommand `cmd:"" help:"Run the reference service alone."`
	Check   checkCommand   `cmd:"" help:"Check a configuration: every mistake with its line and column."`
	Audit   auditCommand   `cmd:"" help:"Grade what a configuration leaves open: each risk, why, and what to do."`
	Explain explainCommand `cmd:"" help:"Tell how a call would be treated."`
	Budget  budgetCommand  `cmd:"" help:"Show what each account has left of its budgets."`
	Tail    tailCommand    `cmd:"" help:"Follow the requests: one line for each, with what Weir decided."`
	Cache   cacheCommand   `cmd:"" help:"Purge what the cache holds."`
	Key     keyCommand     `cmd:"" help:"Make keys for clients."`
	Health  healthCommand  `cmd:"" help:"Tell whether the gateway can answer its clients, by the exit code."`
	Schema  schemaCommand  `cmd:"" help:"Print the JSON Schema of the configuration."`
	Version versionCommand `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print what bash, zsh or fish needs to complete the command line."`
	Man        manCommand        `cmd:"" help:"Print the manual page."`

	PrintVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

// process is what a command may know of the world.
type process struct {
	ctx            context.Context
	getenv         func(string) (string, bool)
	stdout, stderr io.Writer
}

func (p *process) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stdout, format, args...)
}

// exit is an error that carries a code; its message is for the user.
type exit struct {
	code    int
	message string
}

func (e *exit) Error() string { return e.message }

// run is the whole program.
func run(ctx context.Context, args []string, getenv func(string) (string, bool), stdout, stderr io.Writer) (code int) {
	p := &process{ctx, getenv, stdout, stderr}
	// kong ends the process after --help; a test's process goes on.
	defer func() {
		switch r := recover().(type) {
		case nil:
		case helpShown:
			code = int(r)
		default:
			panic(r)
		}
	}()
	parser, err := kong.New(&commands{}, kong.Name("weir"), kong.Writers(stdout, stderr), kong.UsageOnError(),
		kong.Description("A caching, rate-limit-aware egress to one REST API."),
		kong.Vars{"version": versionLine()},
		kong.Exit(func(code int) { panic(helpShown(code)) }))
	if err != nil {
		panic(err) // the commands above
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "weir: %v\nweir --help tells more\n", err)
		return exitUsage
	}
	return p.code(parsed.Run(p))
}

type helpShown int

// code tells the user what is wrong, and the caller how it ended.
func (p *process) code(err error) int {
	if err == nil {
		return exitOK
	}
	code, message := exitFailure, err.Error()
	if e := (*exit)(nil); errors.As(err, &e) { // kong joins what commands return
		code, message = e.code, e.message
	}
	if message != "" {
		_, _ = fmt.Fprintf(p.stderr, "weir: %s\n", strings.ReplaceAll(message, "\n", "\nweir: "))
	}
	return code
}
