package fields

import (
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// Preference is the content of a Prefer field (RFC 7240): the maximum wait of the client.
type Preference struct {
	Wait    time.Duration
	Given   bool
	Applied string // value of Preference-Applied
}

// maxWait bounds the wait that a client can request.
const maxWait = 5 * time.Minute

// ParsePrefer returns the first preference for this gateway.
func ParsePrefer(values []string) Preference {
	for part := range policy.Members(values) {
		name, argument, _ := strings.Cut(part, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "respond-async":
			return Preference{Given: true, Applied: "respond-async"}
		case "wait":
			if n, err := strconv.ParseUint(strings.Trim(argument, `" `), 10, 31); err == nil {
				wait := min(time.Duration(n)*time.Second, maxWait)
				return Preference{Wait: wait, Given: true, Applied: "wait=" + strconv.FormatUint(n, 10)}
			}
		}
	}
	return Preference{}
}

// Prefer is the request field with preferences (RFC 7240).
const Prefer = "Prefer"

// otherPreferences returns the preferences that are not for this gateway.
func otherPreferences(values []string) (others []string) {
	for part := range policy.Members(values) {
		name, _, _ := strings.Cut(part, "=")
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != "wait" && name != "respond-async" {
			others = append(others, part)
		}
	}
	return others
}
