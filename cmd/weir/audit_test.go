package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAuditOfSampleConfigurations compares the findings for every sample configuration with
// testdata/audit. WEIR_UPDATE=1 rewrites the files.
func TestAuditOfSampleConfigurations(t *testing.T) {
	ready, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(ready) < 4 {
		t.Fatal(ready, err)
	}
	variables := map[string]string{
		"UPSTREAM_URL": "https://api.example.com", "CI_TOKEN": "canary", "UPSTREAM_TOKEN": "canary", "BUILDS_KEY_SHA256": strings.Repeat("0f", 32),
		"REDIS_URL": "rediss://user:canary@redis.internal:6379/0", "HOOK_SECRET": strings.Repeat("canary", 6), "ADMIN_TOKEN_FILE": filepath.Join(t.TempDir(), "admin"),
		"APP_ID": "4200", "APP_KEY_FILE": filepath.Join(t.TempDir(), "app.pem"), "BOT_TOKEN": "canary", "CACHE_KEY": strings.Repeat("canary", 6),
	}
	for i, name := range []string{"CI", "DEPLOYS", "REPORTS", "PEOPLE"} {
		variables[name+"_KEY_SHA256"] = strings.Repeat(fmt.Sprintf("%02x", i), 32)
	}
	write(t, variables["APP_KEY_FILE"], privateKey(t).Reveal())
	write(t, variables["ADMIN_TOKEN_FILE"], strings.Repeat("canary", 6))
	getenv := func(name string) (string, bool) { value, ok := variables[name]; return value, ok }
	golden, err := filepath.Abs("testdata/audit")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, path := range append(ready, "testdata/audit/bad.yaml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(path)] = string(text)
	}
	t.Chdir(t.TempDir())
	for name, text := range texts {
		mode := os.FileMode(0o644) // the mode of a checkout
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil { // independent of the umask
			t.Fatal(err)
		}
		var out, problems bytes.Buffer
		code := run(context.Background(), []string{"audit", name}, getenv, &out, &problems)
		if (code == exitFailure) != strings.Contains(out.String(), "high  ") || code == exitUsage || strings.Contains(out.String()+problems.String(), "canary") {
			t.Errorf("%s: %d %s%s", name, code, out.String(), problems.String())
		}
		file := filepath.Join(golden, strings.TrimSuffix(name, ".yaml")+".txt")
		if os.Getenv("WEIR_UPDATE") != "" {
			write(t, file, out.String())
		}
		want, err := os.ReadFile(file)
		if diff := cmp.Diff(string(want), out.String()); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
}
