package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTheUnitIsInOrder has systemd read it. The programs that it names are put where this
// machine has them.
func TestTheUnitIsInOrder(t *testing.T) {
	unit := strings.ReplaceAll(text(t, "deploy/systemd/weir.service"), "/usr/local/bin/weir", weir(t))
	path := filepath.Join(t.TempDir(), "weir.service")
	if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	// What it does not know it tells, and calls it in order nevertheless.
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	// Of 10; the network itself, which it is for, is 1 of them.
	tool(t, "systemd-analyze", "security", "--offline=yes", "--threshold=15", path)
}

// setting finds what the unit says.
func setting(t *testing.T, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(text(t, "deploy/systemd/weir.service"))
	if m == nil {
		t.Fatalf("the unit has no %s", name)
	}
	return m[1]
}

// TestTheUnitsConfigurationRuns starts the binary with the file beside the unit, and the
// folders that systemd makes for it.
func TestTheUnitsConfigurationRuns(t *testing.T) {
	if got := setting(t, "ExecStart"); got != "/usr/local/bin/weir serve --config /etc/weir/weir.yaml" {
		t.Errorf("%s", got)
	}
	config, state := text(t, "deploy/systemd/weir.yaml"), t.TempDir()
	if folder := "/var/lib/" + setting(t, "StateDirectory") + "/"; !strings.Contains(config, folder) {
		t.Errorf("nothing is kept in %s", folder)
	}
	name, _, _ := strings.Cut(setting(t, "LoadCredential"), ":")
	hash := regexp.MustCompile(`sha256:([0-9a-f]{64})`)
	key := tool(t, weir(t), "key", "new", "builds")
	env := []string{"BUILDS_KEY_SHA256=" + hash.FindStringSubmatch(key)[1]}
	r := run(t, strings.ReplaceAll(config, "/var/lib/weir", state), "${CREDENTIALS_DIRECTORY}", map[string]string{name: "the-token-of-the-api"}, env...)
	if status, body := r.asks(r.admin + "/readyz"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	shown := strings.Fields(strings.Split(key, "\n")[1])[0]
	if status, body := r.asks(r.gateway+"/rate_limit", "Authorization: Bearer "+shown); status != 200 || !strings.Contains(body, `"limit"`) {
		t.Errorf("a client: %d %s", status, body)
	}
	if status, _ := r.asks(r.gateway + "/rate_limit"); status != 401 {
		t.Errorf("a stranger: %d", status)
	}
	if _, err := os.Stat(state + "/ledger.lock"); err != nil {
		t.Error(err)
	}
}

// TestTheKernelKnowsItsSettings: each name is one of this kernel's, and each value has as
// many numbers as it has there.
func TestTheKernelKnowsItsSettings(t *testing.T) {
	settings := regexp.MustCompile(`(?m)^([a-z0-9_.-]+) = ([0-9 ]+)$`).FindAllStringSubmatch(text(t, "deploy/sysctl/90-weir.conf"), -1)
	for _, s := range settings {
		is, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(s[1], ".", "/"))
		if err != nil || len(strings.Fields(string(is))) != len(strings.Fields(s[2])) {
			t.Errorf("%s: %q here, %v", s[1], is, err)
		}
		for _, number := range strings.Fields(s[2]) {
			if _, err := strconv.Atoi(number); err != nil {
				t.Error(err)
			}
		}
	}
	lines := regexp.MustCompile(`(?m)^[^#\n].*$`).FindAllString(text(t, "deploy/sysctl/90-weir.conf"), -1)
	if len(settings) != len(lines) || len(lines) == 0 {
		t.Errorf("%d of %d lines are settings", len(settings), len(lines))
	}
}
