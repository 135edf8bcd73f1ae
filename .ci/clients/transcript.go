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

// transcript returns a complete report of a run with its times.
func (c client) transcript(version, output string, wire []exchange) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, versions\n\n%s\nOutput of the scenario\n\n%s\nHTTP exchanges\n", c.name, strings.Join(c.pins, ", "), version, output)
	for _, e := range wire {
		e.write(&b)
	}
	return []byte(b.String())
}

// masked returns the transcript for the repository. It masks values that differ between runs, and contains only the
// structure of successful responses.
func (c client) masked(output string, wire []exchange, p *setup) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\nOutput of the scenario\n\n%s\nHTTP exchanges\n", c.name, strings.Join(c.pins, ", "), output)
	refused := map[string]bool{} // by resource
	for _, e := range wire {
		// The number of requests that still count after a refusal depends on their speed.
		if resource := e.got.Get("X-Ratelimit-Resource"); e.status == http.StatusForbidden {
			refused[resource] = resource != ""
		} else if refused[resource] {
			e.got = e.got.Clone()
			e.got.Set("X-Ratelimit-Remaining", "N")
			e.got.Set("X-Ratelimit-Used", "N")
		}
		fmt.Fprintf(&b, "\n> %s %s %s\n", e.method, e.uri, e.protocol)
		writeFields(&b, "> ", e.sent)
		fmt.Fprintf(&b, "< %d\n", e.status)
		writeFields(&b, "< ", e.got)
		if len(e.body) > 0 {
			fmt.Fprintf(&b, "< %s\n", form(e))
		}
	}
	return mask(b.String(), p)
}

// form returns the structure of a body, or the whole body of a refusal.
func form(e exchange) string {
	if e.status >= http.StatusBadRequest {
		return strings.TrimSpace(string(e.body))
	}
	var v any
	if err := json.Unmarshal(e.body, &v); err != nil {
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

// object returns the names in a JSON object.
func object(v any) string {
	o, ok := v.(map[string]any)
	if !ok {
		return fmt.Sprintf("%T", v)
	}
	return "{" + strings.Join(slices.Sorted(maps.Keys(o)), ", ") + "}"
}

// masks are patterns of values that differ between runs, with their replacements. A replacement with # gets a number
// for each value, so that equal values stay equal.
var masks = []struct {
	pattern     *regexp.Regexp
	replacement string
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
	// The number of polls for statistics depends on their duration.
	{regexp.MustCompile(`(?m)^(< X-Ratelimit-Remaining: )\d+(\n.*\n.*: core\n< X-Ratelimit-Used: )\d+$`), "${1}N${2}N"},
	{regexp.MustCompile(`\bNode\.js/\S+ \([^)]*\)`), "Node.js/N"},
}

// mask replaces addresses and all masks.
func mask(text string, p *setup) string {
	text = strings.NewReplacer(p.address, "weir", strings.TrimPrefix(p.service, "http://"), "api").Replace(text)
	for _, m := range masks {
		if name, ok := strings.CutSuffix(m.replacement, "#"); ok {
			seen := map[string]string{}
			text = m.pattern.ReplaceAllStringFunc(text, func(found string) string {
				if seen[found] == "" {
					seen[found] = fmt.Sprint(name, len(seen)+1)
				}
				return seen[found]
			})
			continue
		}
		text = m.pattern.ReplaceAllString(text, m.replacement)
	}
	return text
}

// compare stores the transcript, or returns an error with the difference from the stored transcript.
func (c client) compare(write bool, text string) error {
	stored, current := filepath.Join(sources, "transcripts", c.name+".txt"), filepath.Join(out, c.name+".txt")
	if err := os.WriteFile(current, []byte(text), 0o600); err != nil {
		return err
	}
	if write {
		return os.WriteFile(stored, []byte(text), 0o644)
	}
	difference, err := exec.Command("diff", "-u", stored, current).CombinedOutput()
	var differs *exec.ExitError
	if errors.As(err, &differs) {
		return fmt.Errorf("the run differs from the stored transcript; to store the new one, run \"make clients CLIENTS=%s TRANSCRIPTS=write\":\n%s", c.name, difference)
	}
	return err
}
