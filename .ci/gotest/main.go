// Command gotest runs "go test" with the arguments after "--". It prints the results of all packages, the output of tests that
// failed or did not end, the reasons of skipped tests, and the ten slowest tests. With -limit DURATION, it fails if a test takes
// longer.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// result is the duration of a test.
type result struct {
	name    string
	elapsed time.Duration
}

// report prints the events of a run.
type report struct {
	out     io.Writer
	outputs map[string]map[string][]string // output of tests that still run, by package and test; a package itself is the test ""
	tests   []result
	skipped map[string]int // number of tests, by reason
}

func main() {
	limit := flag.Duration("limit", 0, "the longest duration of a test; 0 means no limit")
	flag.Parse()
	if err := run(*limit, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(limit time.Duration, args []string, out io.Writer) error {
	command := exec.Command(cmp.Or(os.Getenv("GO"), "go"), append([]string{"test", "-json"}, args...)...) //nolint:noctx // ends with the tests
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	r := report{out: out, outputs: map[string]map[string][]string{}, skipped: map[string]int{}}
	err = errors.Join(r.read(events), command.Wait())
	return errors.Join(err, r.finish(limit))
}

// read prints the events as they arrive.
func (r *report) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line) // "go test" itself wrote the line
			} else {
				r.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	if r.outputs[e.Package] == nil {
		r.outputs[e.Package] = map[string][]string{}
	}
	running := r.outputs[e.Package]
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if e.Test != "" || !strings.HasPrefix(e.Output, "ok ") {
			running[e.Test] = append(running[e.Test], e.Output)
		} else if !strings.Contains(e.Output, "[no tests to run]") {
			fmt.Fprint(r.out, e.Output)
		}
	case "pass", "fail", "skip":
		output := running[e.Test]
		delete(running, e.Test)
		if e.Test == "" {
			for _, name := range slices.Sorted(maps.Keys(running)) { // the process ended before these tests
				fmt.Fprintf(r.out, "%s--- FAIL: %s (did not end)\n", strings.Join(running[name], ""), name)
			}
			clear(running)
		}
		if e.Action == "fail" {
			fmt.Fprint(r.out, strings.Join(output, ""))
		}
		if e.Test == "" {
			return
		}
		if e.Action == "skip" {
			r.skipped[reason(output)]++
		}
		if !strings.Contains(e.Test, "/") {
			r.tests = append(r.tests, result{e.Package + "." + e.Test, time.Duration(e.Elapsed * float64(time.Second))})
		}
	}
}

// reason returns the text of t.Skip in the output of a test.
func reason(output []string) string {
	for _, line := range output {
		if _, text, found := strings.Cut(line, ".go:"); found {
			_, text, _ = strings.Cut(text, ": ")
			return strings.TrimSpace(text)
		}
	}
	return "no reason"
}

// finish prints the skipped and the slowest tests, and returns an error if a test exceeds the limit.
func (r *report) finish(limit time.Duration) error {
	for text, n := range r.skipped {
		fmt.Fprintf(r.out, "skipped %d: %s\n", n, text)
	}
	slices.SortFunc(r.tests, func(a, b result) int { return cmp.Compare(b.elapsed, a.elapsed) })
	fmt.Fprintf(r.out, "slowest of %d tests:\n", len(r.tests))
	for _, t := range r.tests[:min(10, len(r.tests))] {
		fmt.Fprintf(r.out, "%7.2fs %s\n", t.elapsed.Seconds(), t.name)
	}
	if len(r.tests) > 0 && limit > 0 && r.tests[0].elapsed > limit {
		return fmt.Errorf("%s took %s; the limit is %s", r.tests[0].name, r.tests[0].elapsed, limit)
	}
	return nil
}
