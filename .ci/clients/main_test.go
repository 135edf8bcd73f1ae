package main

import (
	"strings"
	"testing"
)

func TestPinnedRejectsOtherVersion(t *testing.T) {
	c := client{name: "gh", pins: []string{"gh version 2.23.0", "Node v20."}}
	for version, want := range map[string]string{
		"gh version 2.23.0 (2023-02-27)\nNode v20.20.2\n": "",
		"gh version 2.23.01\nNode v20.20.2\n":             `version "gh version 2.23.0"`,
		"gh version 2.46.0\nNode v20.20.2\n":              "CLIENTS=gh TRANSCRIPTS=write",
		"gh version 2.23.0\nNode v22.1.0\n":               `version "Node v20."`,
	} {
		err := c.pinned(version)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", version, err, want)
		}
	}
}
