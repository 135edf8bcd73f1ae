package main

import (
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/service/quirk"
)

// openDefect is a defect of the gateway that makes the random walk fail.
type openDefect struct {
	id      string
	finding string // a part of what the oracle says
	traffic string // the move that shows the defect, or "" for a quirk
	// without disables the quirk that shows the defect.
	without func(*quirk.Set)
}

// openDefects are the defects without which the walk passes with all quirks.
var openDefects = []openDefect{}

func withoutOpenDefects(s *quirk.Set) {
	for _, d := range openDefects {
		if d.without != nil {
			d.without(s)
		}
	}
}

// TestEachOpenDefectFailsTheWalk causes one defect at a time, and detects entries that are no longer necessary.
func TestEachOpenDefectFailsTheWalk(t *testing.T) {
	const most = 6 // seeds
	for i, d := range openDefects {
		t.Run(d.id, func(t *testing.T) {
			for seed := range uint64(most) {
				change := func(s *quirk.Set) {
					for k, other := range openDefects {
						if k != i && other.without != nil {
							other.without(s)
						}
					}
				}
				for _, wrong := range runWalk(t, seed, 1000, change, map[string]bool{d.traffic: true}) {
					if strings.HasPrefix(wrong, d.finding) {
						t.Logf("seed %d: %s", seed, wrong)
						return
					}
				}
			}
			t.Errorf("the walk passes with the defect %s: remove the entry, or show the defect", d.id)
		})
	}
}
