package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/authority"
)

func TestCAInitCreatesAnAuthorityForTheHosts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	// The configuration names the files before they exist.
	configuration := "upstream: {url: \"https://api.example\"}\nhosts: [{name: files.example}]\n" +
		"proxy: {listen: \":3128\", ca: {certificate: weir-ca.crt, key: weir-ca.key}}\n"
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	code, text := runWeir("ca", "init", "--config", file, "--name", "Mirror.example", "--out", dir)
	if code != exitOK || !strings.Contains(text, "api.example, files.example, mirror.example") {
		t.Fatalf("exit %d\n%s", code, text)
	}
	for _, line := range []string{"cp " + filepath.Join(dir, "weir-ca.crt") + " /usr/local/share", "keytool -importcert", "NODE_EXTRA_CA_CERTS=" + dir} {
		if !strings.Contains(text, line) {
			t.Errorf("the instructions lack %q:\n%s", line, text)
		}
	}
	a, err := authority.Load(filepath.Join(dir, "weir-ca.crt"), filepath.Join(dir, "weir-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api.example", "files.example", "mirror.example"} {
		if _, err := a.Certificate(name); err != nil {
			t.Error(err)
		}
	}
	if code, text := runWeir("check", file); code != exitOK {
		t.Errorf("weir check: exit %d\n%s", code, text)
	}
	if code, text := runWeir("ca", "init", "--config", file, "--out", dir); code != exitFailure || !strings.Contains(text, "exists") {
		t.Errorf("a second authority in the same folder: exit %d\n%s", code, text)
	}
}

func TestCAInitRefusesInvalidArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no names: give --config FILE or --name NAME"},
		{[]string{"--name", "a.example", "--validity", "1m"}, "--validity: 1m0s: must be from 1h to 43800h0m0s"},
	} {
		code, text := runWeir(append([]string{"ca", "init", "--out", t.TempDir()}, c.args...)...)
		if code != exitUsage || !strings.Contains(text, c.want) {
			t.Errorf("%v: exit %d\n%s", c.args, code, text)
		}
	}
}
