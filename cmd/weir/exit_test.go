package main

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	valid, invalid, missing := filepath.Join(dir, "valid.yaml"), filepath.Join(dir, "invalid.yaml"), filepath.Join(dir, "missing.yaml")
	write(t, valid, "upstream: {url: \"https://api.example.com\"}\n")
	write(t, invalid, "upstream: {url: here}\nlisten: there\n")
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"help", []string{"--help"}, exitOK},
		{"check of a valid configuration", []string{"check", valid}, exitOK},
		{"explain of a known operation", []string{"explain", "GET", "/user", "--config", valid}, exitOK},
		{"schema", []string{"schema"}, exitOK},
		{"version", []string{"version"}, exitOK},
		{"check of an invalid configuration", []string{"check", invalid}, exitFailure},
		{"explain of an invalid target", []string{"explain", "GET", "user"}, exitFailure},
		{"explain with an invalid configuration", []string{"explain", "GET", "/user", "--config", invalid}, exitFailure},
		{"serve with an invalid configuration", []string{"serve", "--config", invalid}, exitFailure},
		{"budget of an unreachable gateway", []string{"budget", "--admin", "127.0.0.1:1"}, exitFailure},
		{"watched budget of an unreachable gateway", []string{"budget", "--admin", "127.0.0.1:1", "--watch"}, exitFailure},
		{"invalid admin address", []string{"budget", "--admin", "here"}, exitUsage},
		{"interval of zero", []string{"budget", "--interval", "0s"}, exitUsage},
		{"invalid interval", []string{"budget", "--interval", "soon"}, exitUsage},
		{"token of two words", []string{"budget", "--token", "a b"}, exitUsage},
		{"no command", nil, exitUsage},
		{"unknown command", []string{"dance"}, exitUsage},
		{"unknown flag", []string{"version", "--short"}, exitUsage},
		{"unknown dialect", []string{"explain", "GET", "/user", "--dialect", "klingon"}, exitUsage},
		{"missing argument", []string{"check"}, exitUsage},
		{"missing file", []string{"check", missing}, exitUsage},
		{"directory instead of a file", []string{"check", dir}, exitUsage},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, problems bytes.Buffer
			code := run(t.Context(), c.args, noEnv, &out, &problems)
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s%s", code, c.code, out.String(), problems.String())
			}
			if failed := code != exitOK; failed != (problems.Len() > 0) {
				t.Errorf("exit code %d with standard error %q", code, problems.String())
			}
			for line := range strings.Lines(problems.String()) {
				if !strings.HasPrefix(line, "weir") && line != "run weir --help for usage\n" {
					t.Errorf("line %q does not start with the name of the program", line)
				}
			}
		})
	}
}

func TestErrorOfUsedAddressNamesConfigurationKey(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, address := "127.0.0.1:0", taken.Addr().String()
	serve := func(listen, admin string) []string {
		return []string{"serve", "--upstream", "http://127.0.0.1:1", "--listen", listen, "--admin", admin}
	}
	demo := func(listen, admin, service string) []string {
		return []string{"demo", "--listen", listen, "--admin", admin, "--service", service}
	}
	for _, c := range []struct {
		args []string
		key  string
	}{
		{serve(address, free), "listen"}, {serve(free, address), "admin.listen"},
		{demo(address, free, free), "listen"}, {demo(free, address, free), "admin.listen"}, {demo(free, free, address), "service"},
	} {
		var problems bytes.Buffer
		code := run(t.Context(), c.args, noEnv, io.Discard, &problems)
		if text := problems.String(); code != exitFailure || !strings.Contains(text, "weir: "+c.key+": listen tcp "+address) {
			t.Errorf("weir %q: exit code %d, wrote %q", c.args, code, text)
		}
	}
}
