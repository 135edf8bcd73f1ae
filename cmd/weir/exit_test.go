package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	good, bad, none := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "none.yaml")
	write(t, good, "upstream: {url: \"https://api.example.com\"}\n")
	write(t, bad, "upstream: {url: here}\nlisten: there\n")
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"help", []string{"--help"}, exitOK},
		{"valid configuration", []string{"check", good}, exitOK},
		{"known call", []string{"explain", "GET", "/user", "--config", good}, exitOK},
		{"schema", []string{"schema"}, exitOK},
		{"version", []string{"version"}, exitOK},
		{"invalid configuration", []string{"check", bad}, exitFailure},
		{"target that is refused", []string{"explain", "GET", "user"}, exitFailure},
		{"call by an invalid configuration", []string{"explain", "GET", "/user", "--config", bad}, exitFailure},
		{"gateway with an invalid configuration", []string{"serve", "--config", bad}, exitFailure},
		{"budgets of nobody", []string{"budget", "--admin", "127.0.0.1:1"}, exitFailure},
		{"watched budgets of nobody", []string{"budget", "--admin", "127.0.0.1:1", "--watch"}, exitFailure},
		{"no admin address", []string{"budget", "--admin", "here"}, exitUsage},
		{"no time between two questions", []string{"budget", "--interval", "0s"}, exitUsage},
		{"time that is none", []string{"budget", "--interval", "soon"}, exitUsage},
		{"token of two words", []string{"budget", "--token", "a b"}, exitUsage},
		{"no command", nil, exitUsage},
		{"unknown command", []string{"dance"}, exitUsage},
		{"unknown flag", []string{"version", "--short"}, exitUsage},
		{"unknown dialect", []string{"explain", "GET", "/user", "--dialect", "klingon"}, exitUsage},
		{"missing argument", []string{"check"}, exitUsage},
		{"missing file", []string{"check", none}, exitUsage},
		{"folder for a file", []string{"check", dir}, exitUsage},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, problems bytes.Buffer
			code := run(t.Context(), c.args, noEnv, &out, &problems)
			if code != c.code {
				t.Errorf("ended with %d, want %d: %s%s", code, c.code, out.String(), problems.String())
			}
			if failed := code != exitOK; failed != (problems.Len() > 0) {
				t.Errorf("ended with %d and said %q", code, problems.String())
			}
			for line := range strings.Lines(problems.String()) {
				if !strings.HasPrefix(line, "weir") {
					t.Errorf("said %q: who says so?", line)
				}
			}
		})
	}
}
