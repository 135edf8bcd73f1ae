package deploy

import (
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestSystemdUnitIsValidAndHardened(t *testing.T) {
	unit := strings.ReplaceAll(readFile(t, "deploy/systemd/weir.service"), "/usr/local/bin/weir", weirBinary(t))
	failIf(t, unitSetting(t, "Type") != "notify-reload" || unitSetting(t, "MemoryMax") == "", "the unit lacks Type=notify-reload or MemoryMax")
	if m := regexp.MustCompile(`^systemd (\d+)`).FindStringSubmatch(runTool(t, "systemd-analyze", "--version")); m == nil || m[1] < "253" {
		unit = strings.Replace(unit, "Type=notify-reload", "Type=notify", 1) // systemd 253 introduced it
	}
	path := writeFile(t, t.TempDir(), "weir.service", unit)
	must(t, os.Chmod(path, 0o644)) // systemd-analyze warns of an executable unit
	// systemd-analyze exits with 0 for an unknown setting, but writes a warning.
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	failIf(t, err != nil || len(out) > 0, "systemd-analyze verify: %v\n%s", err, out)
	// The threshold is 1.5 of 10 points of exposure. The network, which Weir needs, counts 1 point.
	runTool(t, "systemd-analyze", "security", "--offline=yes", "--threshold=15", path)
}

// unitSetting returns a setting of the unit.
func unitSetting(t *testing.T, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(readFile(t, "deploy/systemd/weir.service"))
	stopIf(t, m == nil, "the unit has no setting %s", name)
	return m[1]
}

// TestSystemdConfigurationStartsGateway starts the binary with the configuration for the unit and
// with the folders that systemd creates.
func TestSystemdConfigurationStartsGateway(t *testing.T) {
	got := unitSetting(t, "ExecStart")
	failIf(t, got != "/usr/local/bin/weir serve --config /etc/weir/weir.yaml", "got ExecStart=%s", got)
	config, state := readFile(t, "deploy/systemd/weir.yaml"), t.TempDir()
	folder := "/var/lib/" + unitSetting(t, "StateDirectory") + "/"
	failIf(t, !strings.Contains(config, folder), "weir.yaml does not use the state folder %s", folder)
	name, _, _ := strings.Cut(unitSetting(t, "LoadCredential"), ":")
	hash := regexp.MustCompile(`sha256:([0-9a-f]{64})`)
	key := runTool(t, weirBinary(t), "key", "new", "builds")
	env := []string{"BUILDS_KEY_SHA256=" + hash.FindStringSubmatch(key)[1]}
	r := startGateway(t, strings.ReplaceAll(config, "/var/lib/weir", state), "${CREDENTIALS_DIRECTORY}", map[string]string{name: "token-of-the-upstream"}, env...)
	r.want(http.StatusOK, "", r.admin+"/readyz")
	secret := strings.Fields(strings.Split(key, "\n")[1])[0]
	r.want(http.StatusOK, `"limit"`, r.url+"/rate_limit", "Authorization: Bearer "+secret)
	r.want(http.StatusUnauthorized, "", r.url+"/rate_limit")
	_, err := os.Stat(state + "/ledger.lock")
	failIf(t, err != nil, "%v", err)
}

// TestSysctlSettingsExist checks that the kernel has each setting, with the same number of values.
func TestSysctlSettingsExist(t *testing.T) {
	settings := regexp.MustCompile(`(?m)^([a-z0-9_.-]+) = ([0-9 ]+)$`).FindAllStringSubmatch(readFile(t, "deploy/sysctl/90-weir.conf"), -1)
	for _, s := range settings {
		current, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(s[1], ".", "/"))
		if err != nil || len(strings.Fields(string(current))) != len(strings.Fields(s[2])) {
			t.Errorf("%s: the kernel has %q, the file %q, error %v", s[1], current, s[2], err)
		}
		for _, number := range strings.Fields(s[2]) {
			_, err := strconv.Atoi(number)
			failIf(t, err != nil, "%v", err)
		}
	}
	lines := regexp.MustCompile(`(?m)^[^#\n].*$`).FindAllString(readFile(t, "deploy/sysctl/90-weir.conf"), -1)
	failIf(t, len(settings) != len(lines) || len(lines) == 0, "only %d of %d lines are settings", len(settings), len(lines))
}
