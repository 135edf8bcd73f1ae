package policy

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"
)

// queryFailure is a row of queryfailures.yaml, which explains the fields.
type queryFailure struct {
	Name   string        `yaml:"name"`
	Status []int         `yaml:"status"`
	Type   []string      `yaml:"type"`
	Begins []string      `yaml:"begins"`
	After  time.Duration `yaml:"after"`
	Outage bool          `yaml:"outage"`
	Source string        `yaml:"source"`
}

var queryFailures = mustDecode[[]queryFailure]("queryfailures.yaml")

// QueryFailure returns the name of the row of queryfailures.yaml that applies to a response, or an empty string. The upstream
// worked for elapsed on the response. outage reports whether an outage of the upstream looks the same.
func (a UpstreamAnswer) QueryFailure(elapsed time.Duration) (name string, outage bool) {
	var parts []part
	if a.Status == http.StatusOK && bytes.Contains(a.Body, []byte(`"errors"`)) {
		parts, _ = a.parts()
	}
	for _, row := range queryFailures {
		applies := func(p part) bool {
			begins := func(text string) bool { return strings.HasPrefix(p.message, text) }
			return slices.Contains(row.Type, p.kind) || slices.ContainsFunc(row.Begins, begins)
		}
		if slices.Contains(row.Status, a.Status) && (row.After > 0 && elapsed >= row.After || slices.ContainsFunc(parts, applies)) {
			return row.Name, row.Outage
		}
	}
	return "", false
}
