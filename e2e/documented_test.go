//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// documentation returns the text of all pages with commands.
func documentation(t *testing.T) string {
	t.Helper()
	pages := []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../deploy/README.md"}
	docs, err := filepath.Glob("../docs/*.md")
	must(t, err)
	var all strings.Builder
	for _, path := range append(pages, docs...) {
		all.WriteString(readFile(t, path))
	}
	return all.String()
}

// TestDocumentedCommandsWork runs the commands of the documentation and checks their output.
func TestDocumentedCommandsWork(t *testing.T) {
	t.Parallel()
	text := strings.Join(strings.Fields(strings.ReplaceAll(documentation(t), "bin/weir", "weir")), " ")
	p := newReader(t)
	for _, c := range documentedCommands {
		failIf(t, !strings.Contains(text, strings.Join(strings.Fields(c.command), " ")), "no page contains %q; remove it from documentedCommands", c.command)
		t.Run(c.command, func(t *testing.T) { p.run(t, c) })
	}
}

// reader is the environment of a reader of the documentation: a folder with configuration files, a demo, and gateways
// with the documented configurations.
type reader struct {
	dir       string
	env       []string
	addresses *strings.Replacer // documented addresses to real addresses
}

func newReader(t *testing.T) *reader {
	t.Helper()
	d := startDemo(t, "--traffic", "off")
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	gateway, admin, service := host(d.gateway), host(d.admin), host(d.service)
	r := &reader{t.TempDir(), nil, strings.NewReplacer()}
	r.prepare(t, admin, service)
	for _, page := range []string{"../docs/migration.md", "../docs/get-started.md"} { // weir.yaml of get-started.md is written last
		r.writeConfigurations(t, page, strings.NewReplacer("127.0.0.1:9000", service))
	}
	addresses := []string{"127.0.0.1:8080", gateway, "weir:8080", gateway, "127.0.0.1:9090", admin, "127.0.0.1:9000", service}
	s := serve(t, filepath.Join(r.dir, "weir.yaml"), r.env...)
	r.addresses = strings.NewReplacer(append(addresses, "127.0.0.1:8081", s.address, "127.0.0.1:9091", s.admin)...)
	return r
}

// writeConfigurations writes the YAML blocks of a page that begin with a file name, and checks that each block is
// valid.
func (r *reader) writeConfigurations(t *testing.T, page string, addresses *strings.Replacer) {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```yaml\n# (\\w+\\.yaml)\\b.*?^```").FindAllStringSubmatch(readFile(t, page), -1)
	failIf(t, len(blocks) == 0, "%s has no configuration with a file name", page)
	for _, b := range blocks {
		if b[1] == "gh.yaml" { // needs a certificate; TestGetStarted runs it
			continue
		}
		text, _ := strings.CutPrefix(strings.TrimSuffix(b[0], "```"), "```yaml\n")
		write(t, filepath.Join(r.dir, b[1]), addresses.Replace(text))
		out, err := r.shell(t.Context(), "weir check "+b[1]).CombinedOutput()
		failIf(t, err != nil, "%s: %s", page, out)
	}
}

// wrapper is a script that runs weir with free ports instead of the default ports.
const wrapper = `#!/bin/sh
command=$1
case "$*" in
*--admin*) ;;
"cache purge "*) shift 2; exec WEIR cache purge --admin ADMIN "$@" ;;
budget*|tail*|health*|"explain --live"*) shift; exec WEIR $command --admin ADMIN "$@" ;;
esac
case $command in
demo) shift; exec WEIR demo --admin 127.0.0.1:0 --service 127.0.0.1:0 --listen 127.0.0.1:0 "$@" ;;
serve) shift; exec WEIR serve --admin 127.0.0.1:0 --listen 127.0.0.1:0 "$@" ;;
service) shift; exec WEIR service --listen 127.0.0.1:0 "$@" ;;
esac
exec WEIR "$@"
`

// prepare sets the documented environment variables and writes the wrapper script.
func (r *reader) prepare(t *testing.T, admin, service string) {
	t.Helper()
	checkout, err := filepath.Abs("..")
	must(t, err)
	bin := t.TempDir()
	text := strings.NewReplacer("WEIR", program, "ADMIN", admin).Replace(wrapper)
	must(t, os.WriteFile(filepath.Join(bin, "weir"), []byte(text), 0o700))
	write(t, filepath.Join(r.dir, ".curlrc"), "silent\nshow-error\n")
	r.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+r.dir, "CHECKOUT="+checkout, "GORACE=atexit_sleep_ms=0",
		"TOKEN=tok-owner", "KEY=a key of 20 characters", "CI_TOKEN=tok-owner", "UPSTREAM_TOKEN=tok-owner",
		"UPSTREAM_URL=http://"+service)
	key, hash := newKey(t, "a")
	r.env = append(r.env, "BUILDS_KEY="+key, "BUILDS_KEY_SHA256="+hash)
}

// run runs a command and compares its output with the expected pattern.
func (r *reader) run(t *testing.T, c documentedCommand) {
	script := c.command
	if c.as != "" {
		script = c.as
	}
	if c.stays {
		script = "exec env " + script // the signal must reach the command, not the shell
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := r.shell(ctx, script)
	var out testservers.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	want := regexp.MustCompile(c.want)
	if c.stays {
		for !want.MatchString(out.String()) && ctx.Err() == nil {
			if c.while != "" {
				text, err := r.shell(ctx, c.while).CombinedOutput()
				failIf(t, err != nil, "%s: %v: %s", c.while, err, text)
			}
			sleep(ctx, 20*time.Millisecond)
		}
		err := cmd.Process.Signal(syscall.SIGINT)
		failIf(t, err != nil, "%v", err)
	}
	err := cmd.Wait()
	failIf(t, err != nil || !want.MatchString(strings.TrimRight(out.String(), "\n")), "%s: %v, want %s, got\n%s", script, err, c.want, out.String())
}

// shell returns a command that runs a script in the folder.
func (r *reader) shell(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", r.addresses.Replace(script))
	cmd.Dir, cmd.Env = r.dir, r.env
	return cmd
}
