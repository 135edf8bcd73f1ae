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

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/testservers"
)

// outputs are patterns of the output of the commands in docs/get-started.md, by the beginning of a command. A command that
// is not listed must succeed. The longest beginning counts.
var outputs = map[string]string{
	"curl -i 127.0.0.1:8080/gitignore":                            `(?s)Cache-Status: weir; fwd=uri-miss; fwd-status=200; stored; ttl=86\d+.*X-Ratelimit-Remaining: 59`,
	"curl -i -H 'Authorization: Bearer tok-owner' 127.0.0.1:8080": `(?s)Remaining: 499\d.*"watcher-01"`,
	"bin/weir budget":               `BUDGET +USED +LEFT`,
	"bin/weir explain GET":          `operation +watching/list-subscribers`,
	"for i in":                      `^(200 ){30}(429|403)`,
	"curl 127.0.0.1:9000/_service/": `"violations":0`,
	"gh auth status":                `Logged in to localhost:\d+ as acme-owner`,
	"gh api -i gitignore":           `weir; fwd=uri-miss`,
	"gh search issues":              `acme/widgets`,
	"bin/weir init":                 `weir_[A-Z0-9]{26}`,
	"bin/weir doctor":               `(?s)ok +upstream: .*ok +credential main: accepted`,
	`curl -i -H "Authorization: Bearer $BUILDS_KEY"`:                     `(?s)^HTTP/1.1 200 .*"watcher-01"`,
	"curl -i -H 'Authorization: Bearer tok-member'":                      `^HTTP/1.1 401 `,
	"bin/weir budget --admin":                                            `main \(user\)`,
	"bin/weir explain --dialect github GET /repos/acme/widgets/issues/7": `operation +issues/get\b`,
}

// servers are the commands that run until Ctrl-C, with what they print when they are ready.
var servers = map[string]string{
	"bin/weir demo":    `Weir is running`,
	"bin/weir service": `msg="reference service started"`,
	"bin/weir serve":   `msg="gateway started"`,
	"bin/weir tail":    ` hit .*gitignore/list-templates`,
}

// TestGetStarted runs all commands of docs/get-started.md in their order. Only the ports differ: those of the page may be
// in use.
func TestGetStarted(t *testing.T) {
	t.Parallel()
	s := &session{T: t, dir: t.TempDir()}
	ports := []string{"make demo", "bin/weir demo --listen 127.0.0.1:8080 --admin 127.0.0.1:9090 --service 127.0.0.1:9000 --traffic off",
		"bin/weir service", "bin/weir service --listen 127.0.0.1:9000", "serve --upstream", "serve --listen 127.0.0.1:8080 --admin 127.0.0.1:9090 --upstream"}
	for _, port := range []string{"8080", "8081", "8443", "9000", "9090", "9091", "9093"} {
		_, free, _ := strings.Cut(testservers.FreeAddress(t), ":")
		s.ports = append(s.ports, "127.0.0.1:"+port, "127.0.0.1:"+free, "localhost:"+port, "localhost:"+free)
	}
	must(t, os.Mkdir(filepath.Join(s.dir, "bin"), 0o700))
	must(t, os.Symlink(program, filepath.Join(s.dir, "bin/weir")))
	write(t, filepath.Join(s.dir, "env"), "")
	write(t, filepath.Join(s.dir, ".curlrc"), "silent\nshow-error\n")
	page := strings.NewReplacer(ports...).Replace(readFile(t, "../docs/get-started.md"))
	for _, section := range strings.Split(page, "\n## ")[1:] {
		for _, block := range regexp.MustCompile("(?ms)^```(sh|yaml)\n(.*?)^```").FindAllStringSubmatch(section, -1) {
			if block[1] == "yaml" {
				s.file(block[2])
				continue
			}
			for line := range strings.Lines(block[2]) {
				s.run(strings.TrimSpace(regexp.MustCompile(`\s{4,}#.*|\s+# (the printed key|on macOS|the upstream|twice).*`).ReplaceAllString(line, "")))
			}
		}
		if !strings.HasPrefix(section, "1") && !strings.HasPrefix(section, "2") { // the demo runs during the first sections
			s.stop()
		}
	}
}

// session is a reader of the page, with the terminals that run a server.
type session struct {
	*testing.T
	dir     string
	ports   []string // of the page, each with a free one
	key     string   // that weir init printed
	running []*exec.Cmd
}

// file writes a configuration that begins with its name. That of weir init exists, and must be that of the page.
func (s *session) file(text string) {
	s.Helper()
	name := regexp.MustCompile(`^# (\w+\.yaml)\n`).FindStringSubmatch(text)
	if name == nil {
		return
	}
	text = strings.NewReplacer(s.ports...).Replace(text)
	path := filepath.Join(s.dir, name[1])
	if name[1] != "weir.yaml" {
		write(s.T, path, text)
		return
	}
	hash := regexp.MustCompile(`sha256:[^"]*`)
	written := parseYAML(s.T, hash.ReplaceAllString(readFile(s.T, path), "HASH"))
	diff := cmp.Diff(parseYAML(s.T, hash.ReplaceAllString(text, "HASH")), written)
	failIf(s, diff != "", "weir.yaml: -page +weir init:\n%s", diff)
}

// run runs a line of the page. Exports are kept for later lines.
func (s *session) run(line string) {
	s.Helper()
	addresses := strings.NewReplacer(append(s.ports, "weir_...", s.key)...)
	actual := addresses.Replace(line)
	if line == "bin/weir budget" || line == "bin/weir tail" {
		actual += addresses.Replace(" --admin 127.0.0.1:9090") // the default
	}
	switch {
	case line == "", strings.HasPrefix(line, "git clone"):
		return
	case strings.HasPrefix(line, "export "):
		write(s.T, filepath.Join(s.dir, "env"), readFile(s.T, filepath.Join(s.dir, "env"))+actual+"\n")
		return
	}
	cmd := exec.CommandContext(s.Context(), "sh", "-c", ". ./env; exec "+actual)
	if strings.HasPrefix(line, "for ") {
		cmd = exec.CommandContext(s.Context(), "sh", "-c", ". ./env; "+actual)
	}
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "HOME="+s.dir, "GH_CONFIG_DIR="+s.dir, "GH_PROMPT_DISABLED=1", "GORACE=atexit_sleep_ms=0")
	for beginning, ready := range servers {
		if strings.HasPrefix(line, beginning) {
			var out testservers.Output
			cmd.Stdout, cmd.Stderr = &out, &out
			must(s, cmd.Start())
			s.running = append(s.running, cmd)
			testservers.Eventually(s, line+" is ready", func(context.Context) bool {
				if strings.HasPrefix(line, "bin/weir tail") {
					get(s, addresses.Replace("http://127.0.0.1:8080/gitignore/templates"))
				}
				return regexp.MustCompile(ready).MatchString(out.String())
			})
			return
		}
	}
	text, err := cmd.CombinedOutput()
	longest := ""
	for beginning := range outputs {
		if strings.HasPrefix(line, beginning) && len(beginning) > len(longest) {
			longest = beginning
		}
	}
	pattern := outputs[longest]
	failIf(s, err != nil || !regexp.MustCompile(pattern).MatchString(string(text)), "%s: %v, want %s, got\n%s", line, err, pattern, text)
	if m := regexp.MustCompile(`weir_[A-Z0-9]{26}`).FindString(string(text)); m != "" {
		s.key = m
	}
}

// stop interrupts the servers of a section. Each must exit with status 0.
func (s *session) stop() {
	s.Helper()
	for _, cmd := range s.running {
		must(s, cmd.Process.Signal(syscall.SIGINT))
		err := cmd.Wait()
		failIf(s, err != nil, "%s: %v", cmd, err)
	}
	s.running = nil
}
