package config

import (
	"fmt"
	"strings"
)

// expandEnv replaces ${NAME} and ${NAME:-default} by the environment; "$${"
// stands for "${". A variable that is not set and has no default is an error,
// an empty one counts as set only without a default.
func expandEnv(text string, getenv func(string) (string, bool)) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "${")
		if !ok {
			b.WriteString(text)
			return b.String(), nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			b.WriteString(literal + "${")
			text = rest
			continue
		}
		b.WriteString(before)
		inner, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", fmt.Errorf("${ is not closed; write $${ for a literal one")
		}
		name, byDefault, hasDefault := strings.Cut(inner, ":-")
		value, set := getenv(name)
		switch {
		case set && (value != "" || !hasDefault):
			b.WriteString(value)
		case hasDefault:
			b.WriteString(byDefault)
		default:
			return "", fmt.Errorf("environment variable %q is not set; ${%s:-default} gives it a default", name, name)
		}
		text = after
	}
}

// nearest returns the name that is at most two edits from key, or nothing.
func nearest(key string, names []string) string {
	best, distance := "", 3
	for _, name := range names {
		if d := edits(key, name); d < distance && d < len(name) {
			best, distance = name, d
		}
	}
	return best
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
