package policy

import (
	"testing"
	"time"
)

func TestEveryEndingVersionIsKnown(t *testing.T) {
	for name, d := range dialects {
		for _, e := range d.Ending {
			if _, err := time.Parse(time.DateOnly, e.Since); err != nil || d.VersionLabel([]string{e.Version}) != e.Version {
				t.Errorf("%s: %+v: %v", name, e, err)
			}
		}
	}
}
