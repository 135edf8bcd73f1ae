package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// transcript is all that is known of a run, with its times.
func (c client) transcript(version, said string, wire []exchange) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, by\n\n%s\nWhat the scenario said\n\n%s\nWhat went over the wire\n", c.name, strings.Join(c.pins, ", "), version, said)
	for _, x := range wire {
		x.write(&b)
	}
	return []byte(b.String())
}

// kept is the transcript that stands in the repository: what differs from run to run is
// masked, and of an answer that is no refusal only the form is told.
func (c client) kept(said string, wire []exchange, p *place) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\nWhat the scenario said\n\n%s\nWhat went over the wire\n", c.name, strings.Join(c.pins, ", "), said)
	refused := map[string]bool{} // by resource
	for _, x := range wire {
		// How many of the requests before a refusal count still when its time is over hangs
		// on how fast they came.
		if resource := x.got.Get("X-Ratelimit-Resource"); x.status == http.StatusForbidden {
			refused[resource] = resource != ""
		} else if refused[resource] {
			x.got = x.got.Clone()
			x.got.Set("X-Ratelimit-Remaining", "N")
			x.got.Set("X-Ratelimit-Used", "N")
		}
		fmt.Fprintf(&b, "\n> %s %s %s\n", x.method, x.uri, x.protocol)
		writeFields(&b, "> ", x.sent)
		fmt.Fprintf(&b, "< %d\n", x.status)
		writeFields(&b, "< ", x.got)
		if len(x.body) > 0 {
			fmt.Fprintf(&b, "< %s\n", form(x))
		}
	}
	return mask(b.String(), p)
}

// form is what a body looks like; of a refusal it is the body.
func form(x exchange) string {
	if x.status >= http.StatusBadRequest {
		return strings.TrimSpace(string(x.body))
	}
	var v any
	if err := json.Unmarshal(x.body, &v); err != nil {
		return "text"
	}
	switch v := v.(type) {
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		return fmt.Sprintf("[%d × %s]", len(v), object(v[0]))
	default:
		return object(v)
	}
}

// object is the names in an object.
func object(v any) string {
	o, ok := v.(map[string]any)
	if !ok {
		return fmt.Sprintf("%T", v)
	}
	return "{" + strings.Join(slices.Sorted(maps.Keys(o)), ", ") + "}"
}

// masks are what no two runs have in common, and what stands for it. What has a number
// gets one for each value, so that the same one can be known again.
var masks = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[0-9a-f]{40}\b`), "sha-#"},
	{regexp.MustCompile(`(?:W/)?"[0-9a-f]{32,}"`), "etag-#"},
	{regexp.MustCompile(`\b[A-Z2-7]{26}\b`), "REQUEST"},
	{regexp.MustCompile(`\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\b`), "DATE"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC( m=\+[\d.]+)?`), "DATE"},
	{regexp.MustCompile(`\b1[78]\d{8}\b`), "TIME"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|s)\b`), "N s"},
	{regexp.MustCompile(`\b\d+ s\b`), "N s"},
	{regexp.MustCompile(`\bttl=-?\d+`), "ttl=N"},
	{regexp.MustCompile(`(?m)^([<>] (?:Age|Content-Length|Retry-After)): \d+$`), "$1: N"},
	// How often the gateway asked for statistics hangs on how long they took.
	{regexp.MustCompile(`(?m)^(< X-Ratelimit-Remaining: )\d+(\n.*\n.*: core\n< X-Ratelimit-Used: )\d+$`), "${1}N${2}N"},
	{regexp.MustCompile(`\bNode\.js/\S+ \([^)]*\)`), "Node.js/N"},
}

// mask masks them.
func mask(text string, p *place) string {
	text = strings.NewReplacer(p.address, "weir", strings.TrimPrefix(p.service, "http://"), "api").Replace(text)
	for _, m := range masks {
		if name, ok := strings.CutSuffix(m.with, "#"); ok {
			seen := map[string]string{}
			text = m.what.ReplaceAllStringFunc(text, func(found string) string {
				if seen[found] == "" {
					seen[found] = fmt.Sprint(name, len(seen)+1)
				}
				return seen[found]
			})
			continue
		}
		text = m.what.ReplaceAllString(text, m.with)
	}
	return text
}

// keep writes the transcript, or reports how it differs from the one that is kept.
func (c client) keep(write bool, text string) error {
	of, now := filepath.Join(sources, "transcripts", c.name+".txt"), filepath.Join(out, c.name+".txt")
	if err := os.WriteFile(now, []byte(text), 0o600); err != nil {
		return err
	}
	if write {
		return os.WriteFile(of, []byte(text), 0o644)
	}
	difference, err := exec.Command("diff", "-u", of, now).CombinedOutput()
	var differs *exec.ExitError
	if errors.As(err, &differs) {
		return fmt.Errorf("it went another way than in the transcript that is kept; if that is meant, \"make clients CLIENTS=%s TRANSCRIPTS=write\" keeps this one:\n%s", c.name, difference)
	}
	return err
}
