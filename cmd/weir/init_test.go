package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

func TestInitWritesAConfigurationForAnApp(t *testing.T) {
	dir := t.TempDir()
	pemFile, file := filepath.Join(dir, "app.pem"), filepath.Join(dir, "weir.yaml")
	write(t, pemFile, privateKey(t).Reveal())
	code, out := runWeir("init", "--out", file, "--upstream", "http://127.0.0.1:9000", "--credential", "app",
		"--app", "42", "--app-key", pemFile, "--installation", "7", "--client", "builds", "--store", "redis://127.0.0.1:6379")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
	cfg, err := config.Load(config.Source{Path: file, Getenv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	if c := cfg.Credentials[0]; c.App.ID != "42" || c.App.Installation != 7 || c.Kind != "installation" || cfg.Callers.PassThrough {
		t.Errorf("credential %+v, pass_through %v", c, cfg.Callers.PassThrough)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
}

func TestInitPromptsForMissingValues(t *testing.T) {
	for _, c := range []struct {
		name, answers string
		want          initCommand
	}{
		{"defaults", "\n\n\n", initCommand{Upstream: "https://api.github.com", Credential: "token", Client: []string{"builds"}}},
		{"own tokens", "https://api.example.com\nnone\n", initCommand{Upstream: "https://api.example.com", Credential: "none"}},
		{"an app", "https://api.example.com\napp\n42\nkey.pem\n7\nci bot\n", initCommand{
			Upstream: "https://api.example.com", Credential: "app", App: "42", AppKey: "key.pem", Installation: 7, Client: []string{"ci", "bot"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got initCommand
			var out strings.Builder
			if err := got.prompt(&process{stdout: &out}, strings.NewReader(c.answers)); err != nil {
				t.Fatal(err)
			}
			if got.Upstream != c.want.Upstream || got.Credential != c.want.Credential || got.App != c.want.App || got.AppKey != c.want.AppKey ||
				got.Installation != c.want.Installation || strings.Join(got.Client, " ") != strings.Join(c.want.Client, " ") {
				t.Errorf("got %+v, want %+v\n%s", got, c.want, &out)
			}
		})
	}
	var c initCommand
	err := c.prompt(&process{stdout: new(strings.Builder)}, strings.NewReader("https://api.example.com\napp\n42\nkey.pem\nseven\n"))
	if err == nil || err.Error() != `read the installation: "seven" is not a number; use the number in the URL of the installation` {
		t.Errorf("error %v", err)
	}
}

// Ctrl-D at a terminal ends the input. No default may answer for the operator then.
func TestInitStopsAtTheEndOfInput(t *testing.T) {
	for _, answers := range []string{"", "\n", "\n\n", "\napp\n42\nkey.pem\n"} {
		var c initCommand
		err := c.prompt(&process{stdout: io.Discard}, strings.NewReader(answers))
		if err == nil || !strings.Contains(err.Error(), "the input ended") {
			t.Errorf("%q: got %v, want an error because the input ended", answers, err)
		}
	}
}
