// Command weir is a caching, rate-limit-aware reverse proxy for one REST API. The command runs the gateway and the
// reference service, and has tools for configurations and for operators.
//
// This package reads the command line and connects the other packages. It contains no logic of requests. Invariant: run
// never ends the process, so that tests can call run like main does.
//
// Read first: the commands type in this file, then serve.go (from listeners to shutdown) and gateway.go (how a
// configuration becomes a gateway). Each other subcommand has a separate file.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/weirgate/weir/internal/config"
)

func main() {
	signaled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	context.AfterFunc(signaled, func() {
		stop() // before the shutdown begins, so that a second signal ends the process immediately
		cancel()
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

// commands defines the command line. Each field with a cmd tag is a subcommand.
type commands struct {
	Demo      demoCommand      `cmd:"" help:"Run the gateway, the reference service and sample traffic on this machine."`
	Init      initCommand      `cmd:"" help:"Write a configuration for a new gateway, with keys for its clients."`
	Serve     serveCommand     `cmd:"" help:"Run the gateway."`
	Service   serviceCommand   `cmd:"" help:"Run the reference service alone."`
	Judge     judgeCommand     `cmd:"" help:"Score a rate limiter: count the requests that exceed a limit, and the used quota."`
	Check     checkCommand     `cmd:"" help:"Check a configuration: print every mistake with its line and column."`
	Audit     auditCommand     `cmd:"" help:"List the security risks of a configuration, with a remedy for each."`
	Doctor    doctorCommand    `cmd:"" help:"Check what a configuration depends on: the upstream, the clock, credentials, Redis and certificates."`
	Explain   explainCommand   `cmd:"" help:"Show how the gateway treats a call, or how it answered a request."`
	Catalogue catalogueCommand `cmd:"" help:"List the operations of the API, with what each costs and how it is cached."`
	Budget    budgetCommand    `cmd:"" help:"Show the remaining budgets of each account."`
	Account   accountCommand   `cmd:"" help:"Open an account that is closed after repeated limit errors, or end its cool-down."`
	Tail      tailCommand      `cmd:"" help:"Follow the requests: print one line for each."`
	Cache     cacheCommand     `cmd:"" help:"Purge responses from the cache."`
	CA        caCommand        `cmd:"" help:"Create the authority of the forward proxy."`
	Replay    replayCommand    `cmd:"" help:"Predict from an access log what the gateway would save, refuse and delay."`
	Key       keyCommand       `cmd:"" help:"Create keys for clients."`
	Health    healthCommand    `cmd:"" help:"Report whether the gateway is ready, by the exit code."`
	Schema    schemaCommand    `cmd:"" help:"Print the JSON Schema of the configuration."`
	Version   versionCommand   `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print the completion script for bash, zsh or fish."`
	Man        manCommand        `cmd:"" help:"Print the manual page."`
	Complete   completeCommand   `cmd:"" name:"__complete" hidden:"" passthrough:""`

	PrintVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

// process is the environment of a command. Commands use it instead of package os.
type process struct {
	ctx            context.Context
	getenv         func(string) (string, bool)
	stdout, stderr io.Writer
}

func (p *process) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stdout, format, args...)
}

// messages returns where a command prints messages for people. Standard output is for JSON only if json is set.
func (p *process) messages(json bool) io.Writer {
	if json {
		return p.stderr
	}
	return p.stdout
}

// exit is an error with an exit code. An empty message prints nothing.
type exit struct {
	code    int
	message string
}

func (e *exit) Error() string { return e.message }

// parseDuration parses a duration as the configuration does.
func parseDuration(c *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := c.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := config.ParseDuration(text)
	target.SetInt(int64(d))
	return err
}

// parserErrors are messages of kong about values, and the messages that name the argument, its value and a remedy.
var parserErrors = []struct {
	pattern *regexp.Regexp
	message string
}{
	{regexp.MustCompile(`^(.*): expected \S+ value but got "EOL".*`), `$1: give a value`},
	{regexp.MustCompile(`^(.*): expected \S+ value but got (".*") \(\w+ flag\).*`), `$1: $2: if this is the value, write $1=$2`},
	{regexp.MustCompile(`^(.*): expected a valid \d+ bit int but got (".*")`), `$1: $2: use a whole number`},
	{regexp.MustCompile(`^(.*): expected a valid \d+ bit uint but got (".*")`), `$1: $2: use a whole number of at least 0`},
	{regexp.MustCompile(`^expected "(.*?)".*`), `$1: required`},
	{regexp.MustCompile(`^missing flags: (.*)`), `$1: required`},
	{regexp.MustCompile(`^(.*) can't be used together`), `$1: give only one`},
}

var wrongChoice = regexp.MustCompile(`^(.*) must be one of (.*) but got (".*")$`)

// usageError returns the message of an error of the parser.
func usageError(err error) string {
	message := err.Error()
	if m := wrongChoice.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("%s: %s: use %s", m[1], m[3], choices(strings.Split(strings.ReplaceAll(m[2], `"`, ""), ",")))
	}
	for _, e := range parserErrors {
		if e.pattern.MatchString(message) {
			return e.pattern.ReplaceAllString(message, e.message)
		}
	}
	return message
}

// choices joins at least two names as in "on, off or auto".
func choices[T ~string](names []T) string {
	text := string(names[0])
	for _, name := range names[1 : len(names)-1] {
		text += ", " + string(name)
	}
	return text + " or " + string(names[len(names)-1])
}

// run parses the command line, runs the command and returns the exit code.
func run(ctx context.Context, args []string, getenv func(string) (string, bool), stdout, stderr io.Writer) int {
	p := &process{ctx, getenv, stdout, stderr}
	shown := false // --help or --version
	parser, err := kong.New(&commands{}, kong.Name("weir"), kong.Writers(stdout, stderr),
		kong.Description("A caching, rate-limit-aware egress to one REST API."),
		kong.Vars{"version": versionLine()}, kong.Exit(func(int) { shown = true }), kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(parseDuration)))
	if err != nil {
		panic(err) // a mistake in the struct tags of commands
	}
	code := exitOK
	if len(args) == 0 {
		args, code = []string{"--help"}, exitUsage
		_, _ = fmt.Fprintln(stderr, "weir: name a command, for example weir demo")
	} else if args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	parsed, err := parser.Parse(args)
	if shown {
		return code
	}
	if err != nil {
		command := "weir"
		if e := (*kong.ParseError)(nil); errors.As(err, &e) && e.Context.Selected() != nil {
			command = e.Context.Selected().FullPath()
		}
		_, _ = fmt.Fprintf(stderr, "weir: %s\nrun %s --help for usage\n", usageError(err), command)
		return exitUsage
	}
	err = parsed.Run(p)
	if err == nil {
		return exitOK
	}
	code = exitFailure
	message := err.Error()
	if e := (*exit)(nil); errors.As(err, &e) { // kong wraps the errors of commands
		code, message = e.code, e.message
	}
	if message != "" {
		_, _ = fmt.Fprintf(stderr, "weir: %s\n", strings.ReplaceAll(message, "\n", "\nweir: "))
	}
	return code
}
