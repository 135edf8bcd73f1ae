package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// silence is a row of silence.yaml, which explains the fields.
type silence struct {
	Name       string        `yaml:"name"`
	Others     bool          `yaml:"others"`
	MediaTypes []string      `yaml:"media_types"`
	Header     time.Duration `yaml:"header"`
	Body       time.Duration `yaml:"body"`
}

var silences = mustLoadSilences()

// mustLoadSilences reads silence.yaml, and panics if a row is invalid.
func mustLoadSilences() []silence {
	rows := mustDecode[[]silence]("silence.yaml")
	for _, row := range rows {
		if row.Name == "" || row.Body <= 0 || (row.Header > 0) == (len(row.MediaTypes) > 0) {
			panic(fmt.Errorf("silence.yaml: row %q: needs a name, body, and either media_types or header", row.Name))
		}
	}
	return rows
}

// HeaderSilence returns the longest wait for the response header of an operation. usual is the bound without a row.
func (o *Operation) HeaderSilence(usual time.Duration) time.Duration {
	for _, row := range silences {
		if row.Header > 0 && (!row.Others || !o.Known()) {
			return max(usual, row.Header)
		}
	}
	return usual
}

// BodySilence returns the longest pause within a response body of an operation. usual is the bound without a row.
func (o *Operation) BodySilence(contentType string, usual time.Duration) time.Duration {
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	for _, row := range silences {
		if (!row.Others || !o.Known()) && (len(row.MediaTypes) == 0 || slices.Contains(row.MediaTypes, mediaType)) {
			return max(usual, row.Body)
		}
	}
	return usual
}
