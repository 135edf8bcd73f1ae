// Command clients runs a scenario with each program that people point at an API, against
// bin/weir before bin/weir service, and leaves what went over the wire in
// bin/artefacts/clients. It fails when a scenario does, leaves out a step, breaks a limit,
// connects to anything but the gateway, is told the API's own address by a field, runs
// with another version than it is pinned to, or goes another way than the transcript that
// is kept. docs/clients.md has the lines by which each scenario begins. It is no test of
// Weir alone, and counts nothing itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// client is a program whose scenario is run.
type client struct {
	name    string
	version []string // prints the versions of what runs
	pins    []string // what it must print, each as a word of its own; docs/clients.md names the numbers
	command []string // runs the scenario
	source  string   // which begins with the lines of docs/clients.md
	trusts  string   // the variable that names the file of a private CA
}

const (
	built   = "bin/clients"           // what make clients has built and installed
	out     = "bin/artefacts/clients" // what is left of a run
	sources = ".ci/clients"
)

func clients() []client {
	return []client{
		{
			name: "go-github", version: []string{"go", "version", "-m", built + "/go-github.scenario"}, pins: []string{"github.com/google/go-github/v89 v89.0.0"},
			command: []string{built + "/go-github.scenario"}, source: sources + "/go-github/main.go", trusts: "SSL_CERT_FILE",
		},
		{
			name: "octokit", version: []string{"sh", "-c", "echo Node $(node --version); npm --prefix " + built + "/octokit.packages --loglevel error ls"},
			pins:    []string{"@octokit/rest@22.0.1", "@octokit/plugin-throttling@11.0.5", "@octokit/plugin-retry@8.1.1"},
			command: []string{"node", built + "/octokit.packages/scenario.mjs"}, source: sources + "/octokit/scenario.mjs", trusts: "NODE_EXTRA_CA_CERTS",
		},
		{
			name: "pygithub", version: []string{"/usr/bin/python3", "-c", "from importlib.metadata import version; print('PyGithub', version('PyGithub'))"}, pins: []string{"PyGithub 1.55"},
			command: []string{"/usr/bin/python3", "-B", sources + "/pygithub/scenario.py"}, source: sources + "/pygithub/scenario.py", trusts: "REQUESTS_CA_BUNDLE",
		},
		{
			name: "gh", version: []string{"gh", "--version"}, pins: []string{"gh version 2.23.0"},
			command: []string{"sh", sources + "/gh/scenario.sh"}, source: sources + "/gh/scenario.sh", trusts: "SSL_CERT_FILE",
		},
	}
}

// steps are what every scenario says that it has done.
var steps = []string{"pagination", "reference", "statistics", "conditional", "graphql", "rate-limit", "write", "primary", "secondary"}

func main() {
	write := flag.Bool("write", false, "keep the transcripts of this run, in the place of comparing them")
	flag.Parse()
	if err := run(*write, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// run runs the scenarios of the clients that are named, all of them where none is, each
// with a gateway and a service of its own, at the same time.
func run(write bool, names []string) error {
	all := slices.DeleteFunc(clients(), func(c client) bool { return len(names) > 0 && !slices.Contains(names, c.name) })
	if len(all) == 0 {
		return fmt.Errorf("%q names none of the clients", names)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	ca, err := testservers.NewCA()
	if err != nil {
		return err
	}
	problems := make([]error, len(all))
	var running sync.WaitGroup
	for i, c := range all {
		running.Go(func() {
			began := time.Now()
			if err := scenario(c, ca, write); err != nil {
				problems[i] = fmt.Errorf("%s: %w", c.name, err)
				return
			}
			fmt.Printf("%s: passed in %d s\n", c.name, time.Since(began)/time.Second)
		})
	}
	running.Wait()
	return errors.Join(problems...)
}

// limit is how long one scenario may take: most of it is waiting.
const limit = 4 * time.Minute

func scenario(c client, ca *testservers.CA, write bool) error {
	if err := begins(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	version, err := exec.CommandContext(ctx, c.version[0], c.version[1:]...).Output()
	if err != nil {
		return fmt.Errorf("its version: %w", err)
	}
	if err := c.pinned(string(version)); err != nil {
		return err
	}
	p, err := newPlace(ctx, c.name, ca)
	if err != nil {
		return err
	}
	defer p.close()
	said, ran := c.run(ctx, p)
	wire := p.tap.exchanges()
	written := os.WriteFile(filepath.Join(out, c.name+".wire.txt"), c.transcript(string(version), said, wire), 0o600)
	if ran != nil {
		return fmt.Errorf("%w: %s", ran, said)
	}
	connects, err := os.ReadFile(filepath.Join(out, c.name+".connects"))
	if err != nil {
		return err
	}
	problems := errors.Join(written, missing(said), strays(string(connects), p.address), judge(wire, p.service), p.unharmed(ctx))
	if problems != nil {
		return problems
	}
	return c.keep(write, c.kept(said, wire, p))
}

// run runs the client's program, and has it watched whom it connects to.
func (c client) run(ctx context.Context, p *place) (said string, err error) {
	watched := append([]string{"-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-e", "signal=none", "-o", filepath.Join(out, c.name+".connects")}, c.command...)
	process := exec.CommandContext(ctx, "strace", watched...)
	process.WaitDelay = 5 * time.Second
	home, err := os.MkdirTemp("", "client")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(home) }()
	process.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TZ=Etc/UTC", "WEIR=https://" + p.address, "TOKEN=tok-owner", c.trusts + "=" + p.ca,
	}
	text, err := process.CombinedOutput()
	return string(text), err
}

// pinned reports what runs in another version than the scenario is made for.
func (c client) pinned(version string) error {
	words := strings.Join(strings.Fields(version), " ") + " "
	for _, pin := range c.pins {
		if !strings.HasSuffix(pin, ".") {
			pin += " "
		}
		if !strings.Contains(words, pin) {
			return fmt.Errorf(`it is pinned to %q, and here is

%s
Install that version; or move the pin: write the new one to clients() in .ci/clients/main.go and to docs/clients.md, run
"make clients CLIENTS=%s TRANSCRIPTS=write", and see by git diff what the new version does otherwise`, strings.TrimSpace(pin), version, c.name)
		}
	}
	return nil
}

// begins reports a page that has other lines for a client than its scenario, or that
// does not name the versions it is pinned to.
func begins(c client) error {
	page, err := os.ReadFile("docs/clients.md")
	if err != nil {
		return err
	}
	source, err := os.ReadFile(c.source)
	if err != nil {
		return err
	}
	_, section, _ := strings.Cut(string(page), "\n## "+c.name+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, pin := range c.pins {
		number := strings.TrimSuffix(strings.TrimLeft(pin[strings.LastIndexAny(pin, " @")+1:], "v"), ".")
		if !strings.Contains(section, number) {
			return fmt.Errorf("docs/clients.md does not say that %s is tested", pin)
		}
	}
	_, block, _ := strings.Cut(section, "\n```")
	_, block, _ = strings.Cut(block, "\n")
	block, _, ok := strings.Cut(block, "\n```")
	if !ok {
		return errors.New("docs/clients.md has no lines for it")
	}
	for line := range strings.Lines(block) {
		if line = strings.TrimSpace(line); !strings.Contains(string(source), line+"\n") {
			return fmt.Errorf("docs/clients.md has %q, which %s has not", line, c.source)
		}
	}
	return nil
}

// missing are the steps that a scenario did not say that it has done.
func missing(said string) error {
	var problems []error
	for _, s := range steps {
		if !strings.Contains("\n"+said, "\n"+s+": ") {
			problems = append(problems, fmt.Errorf("said nothing of %s", s))
		}
	}
	return errors.Join(problems...)
}
