package policy

import "slices"

// Ending is a version of the API whose support ends.
type Ending struct {
	Version string `yaml:"version"`
	// Since is the day on which the support may end.
	Since string `yaml:"since"`
}

// OtherVersion replaces all versions that the dialect does not list.
const OtherVersion = "other"

// VersionLabel returns the version that a client asks for, empty if it asks for none, or [OtherVersion]. The number of
// labels is bounded.
func (d *Dialect) VersionLabel(values []string) string {
	switch {
	case len(values) == 0 || values[0] == "":
		return ""
	case slices.Contains(d.Versions, values[0]):
		return values[0]
	}
	return OtherVersion
}
