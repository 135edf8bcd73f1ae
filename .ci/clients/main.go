// Command clients runs scenarios of real client programs against bin/weir, with the reference service as the upstream.
// It writes the HTTP exchanges to bin/artefacts/clients.
//
// A scenario fails in each of these cases:
//
//   - The program fails, omits a step or has another version than the pinned version.
//   - The program breaks a limit, or connects to another address than the gateway.
//   - A header field contains the address of the upstream.
//   - The transcript differs from the stored transcript.
//
// Each scenario begins with the lines that docs/clients.md shows.
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

// client is a client program with its scenario.
type client struct {
	name    string
	version []string // prints the installed versions
	pins    []string // words that the program must print; docs/clients.md contains the version numbers
	command []string // runs the scenario
	source  string   // begins with the lines of docs/clients.md
	trusts  string   // environment variable for the file of a private CA
}

const (
	built   = "bin/clients"           // installed by make clients
	out     = "bin/artefacts/clients" // the folder of the results
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

// steps are the steps that every scenario must report.
var steps = []string{"pagination", "reference", "statistics", "conditional", "graphql", "rate-limit", "write", "primary", "secondary"}

func main() {
	write := flag.Bool("write", false, "store the transcripts of this run instead of comparing them")
	flag.Parse()
	if err := run(*write, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// run runs the scenarios of the named clients, or all scenarios, in parallel. Each scenario has its own gateway and
// service.
func run(write bool, names []string) error {
	all := slices.DeleteFunc(clients(), func(c client) bool { return len(names) > 0 && !slices.Contains(names, c.name) })
	if len(all) == 0 {
		return fmt.Errorf("no client is named %q", names)
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

// limit is the time limit of one scenario.
const limit = 4 * time.Minute

func scenario(c client, ca *testservers.CA, write bool) error {
	if err := checkDocumentation(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	version, err := exec.CommandContext(ctx, c.version[0], c.version[1:]...).Output()
	if err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	if err := c.pinned(string(version)); err != nil {
		return err
	}
	p, err := newSetup(ctx, c.name, ca)
	if err != nil {
		return err
	}
	defer p.close()
	output, runErr := c.run(ctx, p)
	wire := p.recorder.exchanges()
	written := os.WriteFile(filepath.Join(out, c.name+".wire.txt"), c.transcript(string(version), output, wire), 0o600)
	if runErr != nil {
		return fmt.Errorf("%w: %s", runErr, output)
	}
	connects, err := os.ReadFile(filepath.Join(out, c.name+".connects"))
	if err != nil {
		return err
	}
	problems := errors.Join(written, missing(output), foreignConnections(string(connects), p.address), check(wire, p.service), p.checkLimits(ctx))
	if problems != nil {
		return problems
	}
	return c.compare(write, c.masked(output, wire, p))
}

// run runs the scenario under strace, which records its connections.
func (c client) run(ctx context.Context, p *setup) (output string, err error) {
	strace := append([]string{"-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-e", "signal=none", "-o", filepath.Join(out, c.name+".connects")}, c.command...)
	process := exec.CommandContext(ctx, "strace", strace...)
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

// pinned returns an error if the installed version differs from the pinned version.
func (c client) pinned(version string) error {
	words := strings.Join(strings.Fields(version), " ") + " "
	for _, pin := range c.pins {
		if !strings.HasSuffix(pin, ".") {
			pin += " "
		}
		if !strings.Contains(words, pin) {
			return fmt.Errorf(`version %q is required, but the installed version is

%s
Install that version. To change the pin, edit clients() in .ci/clients/main.go and docs/clients.md, run
"make clients CLIENTS=%s TRANSCRIPTS=write", and review the difference with git diff`, strings.TrimSpace(pin), version, c.name)
		}
	}
	return nil
}

// checkDocumentation returns an error if docs/clients.md lacks the pinned version, or shows
// lines that the scenario does not contain.
func checkDocumentation(c client) error {
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
			return fmt.Errorf("docs/clients.md does not mention %s", pin)
		}
	}
	_, block, _ := strings.Cut(section, "\n```")
	_, block, _ = strings.Cut(block, "\n")
	block, _, ok := strings.Cut(block, "\n```")
	if !ok {
		return errors.New("docs/clients.md has no example for this client")
	}
	for line := range strings.Lines(block) {
		if line = strings.TrimSpace(line); !strings.Contains(string(source), line+"\n") {
			return fmt.Errorf("docs/clients.md contains %q, which is not in %s", line, c.source)
		}
	}
	return nil
}

// missing returns an error for each step that the scenario did not report.
func missing(output string) error {
	var problems []error
	for _, s := range steps {
		if !strings.Contains("\n"+output, "\n"+s+": ") {
			problems = append(problems, fmt.Errorf("missing step %s", s))
		}
	}
	return errors.Join(problems...)
}
