package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// place is where documented commands are run: a folder with a demo, and with gateways
// that have the configurations of get-started.md and organization.md.
type place struct {
	dir       string
	addresses *strings.Replacer // of the documents, by those that are listened on
}

// runDocumented runs all of the table, in its order.
func runDocumented(t *testing.T) {
	p := newPlace(t)
	for _, e := range ran {
		t.Run(e.command, func(t *testing.T) { p.try(t, e) })
	}
}

func newPlace(t *testing.T) *place {
	t.Helper()
	demo := start(t, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0", "--traffic", "off")
	gateway, admin, service := demo.says(`gateway +http://(\S+)`), demo.says(`admin +http://(\S+)`), demo.says(`service +http://(\S+)`)
	demo.drain()
	p := &place{t.TempDir(), strings.NewReplacer()}
	p.environment(t, admin, service)
	for _, path := range []string{"docs/migration.md", "docs/get-started.md"} { // the last weir.yaml is that of get-started.md
		p.files(t, path, strings.NewReplacer("127.0.0.1:9000", service))
	}
	write(t, filepath.Join(p.dir, "organization.yaml"), fileOf(t, "configs/organization.yaml"))
	if said, err := p.shell(t.Context(), "openssl genrsa -out app.pem 2048").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	addresses := []string{"127.0.0.1:8080", gateway, "weir:8080", gateway, "127.0.0.1:9090", admin, "127.0.0.1:9000", service}
	for file, documented := range map[string][2]string{"weir.yaml": {"127.0.0.1:8081", "127.0.0.1:9091"}, "organization.yaml": {"127.0.0.1:8082", "127.0.0.1:9092"}} {
		s := start(t, "serve", "--config", filepath.Join(p.dir, file), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
		addresses = append(addresses, documented[0], s.says(`msg="gateway started" address=(\S+)`), documented[1], s.says(`msg="admin listener started" address=(\S+)`))
		s.drain()
	}
	p.addresses = strings.NewReplacer(addresses...)
	return p
}

// files writes the configurations of a page that begin with the name of their file, each
// of which must be valid.
func (p *place) files(t *testing.T, path string, addresses *strings.Replacer) {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```yaml\n# (\\w+\\.yaml)\\b.*?^```").FindAllStringSubmatch(fileOf(t, path), -1)
	if len(blocks) == 0 {
		t.Errorf("%s has no configuration with a name", path)
	}
	for _, b := range blocks {
		file := filepath.Join(p.dir, b[1])
		text, _ := strings.CutPrefix(strings.TrimSuffix(b[0], "```"), "```yaml\n")
		write(t, file, addresses.Replace(text))
		var out bytes.Buffer
		if code := run(t.Context(), []string{"check", file}, os.LookupEnv, &out, &out); code != exitOK {
			t.Errorf("%s: %s", path, out.String())
		}
	}
}

// wrapper stands for weir: the usual ports may be taken, so it asks, and listens,
// elsewhere where it is not told otherwise.
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

// environment is what the documents have their readers set, and a weir on the path.
func (p *place) environment(t *testing.T, admin, service string) {
	t.Helper()
	program, err := exec.LookPath("weir")
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	text := strings.NewReplacer("WEIR", program, "ADMIN", admin).Replace(wrapper)
	if err := os.WriteFile(filepath.Join(bin, "weir"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.dir, ".curlrc"), "silent\nshow-error\n") // no progress
	variables := map[string]string{"PATH": bin + ":" + os.Getenv("PATH"), "HOME": p.dir, "CHECKOUT": checkout,
		"GORACE": "atexit_sleep_ms=0 " + os.Getenv("GORACE"), // else each process lasts a second longer
		"TOKEN":  "tok-owner", "KEY": "a key of 20 characters", "CI_TOKEN": "tok-owner",
		"UPSTREAM_URL": "http://" + service, "BOT_TOKEN": "tok-owner-2", "APP_ID": "4200", "APP_KEY_FILE": "app.pem",
		"CACHE_KEY": rand.Text() + rand.Text(), "HOOK_SECRET": rand.Text()}
	for _, name := range []string{"BUILDS_KEY", "CI_KEY", "DEPLOYS_KEY", "REPORTS_KEY", "PEOPLE_KEY"} {
		variables[name], variables[name+"_SHA256"] = newKey(t)
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

// newKey is what weir key new shows: a key and its hash.
func newKey(t *testing.T) (key, hash string) {
	t.Helper()
	var out, problems bytes.Buffer
	run(t.Context(), []string{"key", "new", "a"}, os.LookupEnv, &out, &problems)
	m := regexp.MustCompile(`(?s)(weir_[A-Z0-9]+).*sha256:([0-9a-f]+)`).FindStringSubmatch(out.String())
	if m == nil {
		t.Fatalf("%s%s", out.String(), problems.String())
	}
	return m[1], m[2]
}

// try runs a command as somebody would who reads it, and looks at what it prints.
func (p *place) try(t *testing.T, e example) {
	script := e.command
	if e.as != "" {
		script = e.as
	}
	if e.stays {
		script = "exec env " + script // the signal is for it
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	command := p.shell(ctx, script)
	out := &printed{want: regexp.MustCompile(e.want), there: make(chan struct{})}
	command.Stdout, command.Stderr = out, out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if e.stays {
		p.until(ctx, t, e, out)
		if err := command.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}
	err := command.Wait()
	if err != nil || !out.matches() {
		t.Errorf("%s: %v, wanted %s\n%s", script, err, e.want, out.String())
	}
}

// shell is a script, to be run in the folder.
func (p *place) shell(ctx context.Context, script string) *exec.Cmd {
	program := "sh"
	if strings.Contains(script, "<(") {
		program = "bash"
	}
	command := exec.CommandContext(ctx, program, "-c", p.addresses.Replace(script))
	command.Dir = p.dir
	return command
}

// until waits for what is wanted.
func (p *place) until(ctx context.Context, t *testing.T, e example, out *printed) {
	for {
		select {
		case <-out.there:
			return
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
			if e.while != "" {
				if said, err := p.shell(ctx, e.while).CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %s", e.while, err, said)
				}
			}
		}
	}
}

// printed is what a command has printed, and says when that is what is wanted.
type printed struct {
	want  *regexp.Regexp
	there chan struct{}
	mu    sync.Mutex
	text  bytes.Buffer
	said  bool
}

func (o *printed) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.text.Write(b)
	if !o.said && o.want.Match(o.text.Bytes()) {
		o.said = true
		close(o.there)
	}
	return n, err
}

// matches is judged at the end, of the whole text without its last line break.
func (o *printed) matches() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.want.Match(bytes.TrimRight(o.text.Bytes(), "\n"))
}

func (o *printed) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprintf("%q", o.text.String())
}
