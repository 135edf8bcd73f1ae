// Command mutants plants the faults of mutants.yaml, one at a time, and prints which command finds each: "make test", or else
// "make race". It fails if no command finds a fault, or if "make test" finds less than 90 % of them. The sources do not change,
// because the go command reads the changed file through -overlay.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

//go:embed mutants.yaml
var table []byte

// mutant is a fault in the product.
type mutant struct {
	Fault    string
	File     string
	Packages string // of the tests that should find the fault
	Old, New string
	// Test is the name of the only test to run, or empty. Settings are its variables, as NAME=VALUE.
	Test     string
	Settings []string
}

func main() {
	only := flag.String("only", ".", "regular expression of the faults to plant")
	write := flag.String("write", "", "Markdown file whose table between the marks is replaced")
	check := flag.Bool("check", false, "only check that each fault can be planted")
	flag.Parse()
	if err := run(*only, *write, *check); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(pattern, write string, check bool) error {
	only, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if pattern != "." && write != "" {
		return errors.New("-write needs all faults, without -only")
	}
	var mutants []mutant
	if err := yaml.Unmarshal(table, &mutants); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var out bytes.Buffer
	out.WriteString("| fault | file | found by |\n|---|---|---|\n")
	planted, found, sound := 0, map[string]int{}, map[string]bool{}
	for _, m := range mutants {
		if !only.MatchString(m.Fault) {
			continue
		}
		planted++
		if check {
			if _, err := m.overlay(dir); err != nil {
				return fmt.Errorf("%s: %w", m.Fault, err)
			}
			continue
		}
		if tests := m.Packages + " " + m.Test; !sound[tests] {
			if output, err := m.runTests("test", ""); err != nil {
				return fmt.Errorf("%s without a fault: %w\n%s", tests, err, output)
			}
			sound[tests] = true
		}
		overlay, err := m.overlay(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Fault, err)
		}
		command, foundBy := "nothing", "nothing"
		began := time.Now()
		for _, target := range []string{"test", "race"} {
			if output, err := m.runTests(target, overlay); err != nil {
				if bytes.Contains(output, []byte("[build failed]")) {
					return fmt.Errorf("%s: the change does not compile\n%s", m.Fault, output)
				}
				command, foundBy = "make "+target, cmp.Or(failure(output), "-")
				if target != "test" {
					foundBy += " (" + command + ")"
				}
				break
			}
		}
		found[command]++
		row := fmt.Sprintf("| %s | %s | %s |\n", m.Fault, m.File, foundBy)
		out.WriteString(row)
		fmt.Fprintf(os.Stderr, "%5.1fs %s", time.Since(began).Seconds(), row)
	}
	if check {
		return nil
	}
	fmt.Fprintf(&out, "\n`make test` finds %d of %d, `make check` %d.\n", found["make test"], planted, planted-found["nothing"])
	fmt.Print(out.String())
	if planted == 0 {
		return fmt.Errorf("no fault matches %q", pattern)
	}
	if found["nothing"] > 0 || 10*found["make test"] < 9*planted {
		return fmt.Errorf("%d faults were not found, and %d not by make test", found["nothing"], planted-found["make test"])
	}
	if write == "" {
		return nil
	}
	return replace(write, out.String())
}

// overlay writes the changed file, and the file for -overlay. It returns the path of the latter.
func (m mutant) overlay(dir string) (string, error) {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return "", fmt.Errorf("%s: the old text occurs %d times, not once", m.File, n)
	}
	changed := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.File)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// failed matches the first line about a failed test, without the name of its subtest.
var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\w+)`)

// runTests runs a make target for the tests of a fault, with an overlay, or without if it is empty. It returns the output of the
// target.
func (m mutant) runTests(target, overlay string) ([]byte, error) {
	flags := "TESTFLAGS=-failfast"
	if m.Test != "" {
		flags += " -run=^" + m.Test + "$$"
	}
	command := exec.Command("make", target, "PACKAGES="+m.Packages, flags) //nolint:noctx // ends with the tests
	command.Env = append(os.Environ(), m.Settings...)
	if overlay != "" {
		command.Env = append(command.Env, "GOFLAGS=-overlay="+overlay)
	}
	return command.CombinedOutput()
}

// failure returns the name of the first test that failed. If no test failed, for example because a test took too long, it returns
// the message of gotest.
func failure(output []byte) string {
	if match := failed.FindSubmatch(output); match != nil {
		return string(match[1])
	}
	_, message, _ := strings.Cut(string(output), "gotest: ")
	message, _, _ = strings.Cut(message, "\n")
	return message
}

// replace replaces the text between the marks in a file.
func replace(path, text string) error {
	const begin, end = "<!-- mutants -->\n", "<!-- /mutants -->"
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), begin)
	_, after, found2 := strings.Cut(rest, end)
	if !found || !found2 {
		return fmt.Errorf("%s has no marks %q and %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+text+end+after), 0o600)
}
