// Package fields selects the fields of requests that are sent upstream, and the fields of responses that clients get.
package fields

import (
	"maps"
	"net/http"
	"regexp"
	"slices"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// Outgoing are the request fields of a question. policy/fields.yaml has the rules.
type Outgoing struct {
	Header http.Header
	// Keyed are the sorted names of the fields in the cache key, besides Accept.
	Keyed []string
	// Numbers are the sorted names of the fields of which the cache key has only the name ([Outgoing.Implied]).
	Numbers  []string
	Withheld []string // rows of the table for the fields that are not forwarded
	// Credentials are the fields that are not forwarded because they hold a credential. They belong to the key, because a client
	// that names itself expects a response for itself.
	Credentials http.Header
}

// Outbound returns the fields of a request from a client. known means that the operation is known. via is the Via value of the gateway.
func Outbound(in http.Header, known bool, via []string) Outgoing {
	connection, out := cache.ConnectionFields(in), make(http.Header, len(in)+2)
	f := Outgoing{Header: out}
	for name, values := range in {
		if len(values) == 0 {
			continue
		}
		rule, row := policy.RequestField(name)
		switch {
		case rule == policy.FieldConsumed || connection[name]:
		case rule == policy.FieldPassed:
			out[name] = values[:len(values):len(values)]
		case rule == policy.FieldKeyed:
			if name == Prefer {
				if values = otherPreferences(values); len(values) == 0 {
					continue
				}
			}
			out[name] = values[:len(values):len(values)]
			switch {
			case name == "Accept":
			case !known && row == "" && isPlainNumber(name, values):
				f.Numbers = append(f.Numbers, name)
			default:
				f.Keyed = append(f.Keyed, name)
			}
		default:
			f.Withheld = append(f.Withheld, row)
			if rule == policy.FieldCredential {
				if f.Credentials == nil {
					f.Credentials = http.Header{}
				}
				f.Credentials[name] = values
			}
		}
	}
	slices.Sort(f.Keyed)
	slices.Sort(f.Numbers)
	if len(f.Withheld) > 1 {
		slices.Sort(f.Withheld)
		f.Withheld = slices.Compact(f.Withheld)
	}
	if !known {
		out["Surrogate-Capability"] = surrogateCapability
	}
	if values := out["If-Match"]; len(values) > 0 {
		out["If-Match"] = strengthen(values)
	}
	if out.Get("User-Agent") == "" {
		out["User-Agent"] = DefaultAgent
	}
	out["Via"] = via
	if earlier := in["Via"]; len(earlier) > 0 && !connection["Via"] {
		out["Via"] = slices.Concat(earlier, via)
	}
	return f
}

// All requests share these field values, which must not be modified. The upstream requires a User-Agent, and DefaultAgent is that
// of Weir. Surrogate-Capability names this cache for targeted Cache-Control fields of unknown operations (package cache).
var (
	DefaultAgent        = []string{"weir"}
	surrogateCapability = []string{`weir="Surrogate/1.0"`}
)

var (
	// smallNumbers matches values of at most four digits, which hold no credential.
	smallNumbers = regexp.MustCompile(`^[0-9, ]{1,4}$`)
	// namesCaller matches the names of fields in which even a small number may select the data of a caller.
	namesCaller = regexp.MustCompile(`(?i)(^|-)(id|uid|gid|sid|pin|otp|as|org|for)(-|$)|token|key|secret|pass|pwd|auth|sign|sess|jwt|cred|cookie|code|` +
		`ticket|grant|cert|user|login|account|tenant|owner|member|client|customer|sudo|actor|subject|principal|ident|role|scope|group|team|project|organi|company|workspace|` +
		`behalf|impersonat|delegat|mfa|employee|staff|person|badge|device|profile|view|visitor|reader|subscriber|holder|patient|department|division|realm|domain|site|store|uuid|nonce`)
)

// isPlainNumber reports whether a field has a small number and names no caller. Programs number their requests.
func isPlainNumber(name string, values []string) bool {
	return len(values) == 1 && smallNumbers.MatchString(values[0]) && !namesCaller.MatchString(name)
}

// weakPrefix matches the beginning of a weak ETag in a list.
var weakPrefix = regexp.MustCompile(`(^|,)([ \t]*)W/"`)

// strengthen reverses weaken in If-Match, in which a weak ETag never matches (RFC 9110 section 13.1.1). If the upstream's
// ETag is weak, its strong form does not match either.
func strengthen(values []string) []string {
	strong := make([]string, len(values))
	for i, value := range values {
		strong[i] = weakPrefix.ReplaceAllString(value, `$1$2"`)
	}
	return strong
}

// KeyParts returns the parts of a cache key: the first parts, and the names and values of the keyed fields and credentials.
func (f *Outgoing) KeyParts(first ...string) []string {
	parts := slices.Grow(first, 2*len(f.Keyed))
	for _, name := range f.Keyed {
		value := cache.FieldValue(f.Header, name)
		if name == "Accept-Language" && value == "*" {
			continue // means the same as no field (RFC 9110 section 12.5.4)
		}
		parts = append(parts, name, value)
	}
	for _, name := range f.Numbers {
		parts = append(parts, "a number in", name)
	}
	if len(f.Credentials) > 0 {
		for _, name := range slices.Sorted(maps.Keys(f.Credentials)) {
			parts = append(parts, name, cache.FieldValue(f.Credentials, name))
		}
	}
	return parts
}

// Implied returns the names of the fields that a response depends on although neither the key nor its Vary field contains their
// values. vary are the fields of Vary outside the key. A number counts for a response without such fields: an upstream that lists
// one of its fields in Vary lists all of them.
func (f *Outgoing) Implied(vary []cache.Field) []string {
	if len(vary) > 0 {
		return nil
	}
	return f.Numbers
}
