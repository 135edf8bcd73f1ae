package policy

import (
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

var silences = mustDecode[[]silence]("silence.yaml")

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
