package proxy

import (
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// All requests share these field values, which must not be modified. The upstream requires a User-Agent.
// Surrogate-Capability names this cache for targeted Cache-Control fields of unknown operations (package cache).
var (
	defaultAgent        = []string{"weir"}
	identityEncoding    = []string{"identity"}
	surrogateCapability = []string{`weir="Surrogate/1.0"`}
)

// contentFields describe the body of a request. GET and HEAD requests are forwarded without a body, and therefore without
// these fields.
var contentFields = []string{"Content-Encoding", "Content-Language", "Content-Type"}

// sentFields are the request fields of a question. policy/fields.yaml has the rules.
type sentFields struct {
	header http.Header
	// keyed are the sorted names of the fields in the cache key, besides Accept.
	keyed []string
	// numbers are the sorted names of the fields of which the cache key has only the name ([sentFields.implied]).
	numbers  []string
	withheld []string // rows of the table for the fields that are not forwarded
	// credentials are the fields that are not forwarded because they hold a credential. They belong to the key, because a client
	// that names itself expects a response for itself.
	credentials http.Header
}

var (
	// smallNumbers matches values of at most four digits, which hold no credential.
	smallNumbers = regexp.MustCompile(`^[0-9, ]{1,4}$`)
	// namesCaller matches the names of fields in which even a small number may select the data of a caller.
	namesCaller = regexp.MustCompile(`(?i)(^|-)(id|uid|gid|sid|pin|otp|as|org|for)(-|$)|token|key|secret|pass|pwd|auth|sign|sess|jwt|cred|cookie|code|` +
		`ticket|grant|cert|user|login|account|tenant|owner|member|client|customer|person|sudo|actor|subject|principal|ident|role|scope|group|team|project|organi|company|workspace|` +
		`behalf|impersonat|delegat|mfa|employee|staff|person|badge|device|profile|view|visitor|reader|subscriber|holder|patient|department|division|realm|domain|site|store|uuid|nonce`)
)

// isPlainNumber reports whether a field has a small number and names no caller. Programs number their requests.
func isPlainNumber(name string, values []string) bool {
	return len(values) == 1 && smallNumbers.MatchString(values[0]) && !namesCaller.MatchString(name)
}

// outbound returns the fields of a client's request that are forwarded.
func (g *Gateway) outbound(in http.Header, known bool) sentFields {
	connection, out := cache.ConnectionFields(in), make(http.Header, len(in)+2)
	f := sentFields{header: out}
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
			if name == preferField {
				if values = otherPreferences(values); len(values) == 0 {
					continue
				}
			}
			out[name] = values[:len(values):len(values)]
			switch {
			case name == "Accept":
			case !known && row == "" && isPlainNumber(name, values):
				f.numbers = append(f.numbers, name)
			default:
				f.keyed = append(f.keyed, name)
			}
		default:
			f.withheld = append(f.withheld, row)
			if rule == policy.FieldCredential {
				if f.credentials == nil {
					f.credentials = http.Header{}
				}
				f.credentials[name] = values
			}
		}
	}
	slices.Sort(f.keyed)
	slices.Sort(f.numbers)
	if len(f.withheld) > 1 {
		slices.Sort(f.withheld)
		f.withheld = slices.Compact(f.withheld)
	}
	if !known {
		out["Surrogate-Capability"] = surrogateCapability
	}
	if values := out["If-Match"]; len(values) > 0 {
		out["If-Match"] = strengthen(values)
	}
	if out.Get("User-Agent") == "" {
		out["User-Agent"] = defaultAgent
	}
	out["Via"] = g.via
	if earlier := in["Via"]; len(earlier) > 0 && !connection["Via"] {
		out["Via"] = slices.Concat(earlier, g.via)
	}
	return f
}

// keyParts returns the parts of a cache key: the first parts, and the names and values of the keyed fields and credentials.
func (f *sentFields) keyParts(first ...string) []string {
	parts := slices.Grow(first, 2*len(f.keyed))
	for _, name := range f.keyed {
		value := cache.FieldValue(f.header, name)
		if name == "Accept-Language" && value == "*" {
			continue // means the same as no field (RFC 9110 section 12.5.4)
		}
		parts = append(parts, name, value)
	}
	for _, name := range f.numbers {
		parts = append(parts, "a number in", name)
	}
	for _, name := range slices.Sorted(maps.Keys(f.credentials)) {
		parts = append(parts, name, cache.FieldValue(f.credentials, name))
	}
	return parts
}

// implied returns the names of the fields that a response depends on although neither the key nor its Vary field contains their
// values. vary are the fields of Vary outside the key. A number counts for a response without such fields: an upstream that lists
// one field of its own in Vary lists them all.
func (f *sentFields) implied(vary []cache.Field) []string {
	if len(vary) > 0 {
		return nil
	}
	return f.numbers
}

// addTrailers forwards the trailers of a request with a body that have no row in the table. In trailers the fields with a row have
// no meaning (RFC 9110 section 6.5.1). The values are known at the end of the body.
func (g *Gateway) addTrailers(ex *exchange, out *http.Request) {
	connection := cache.ConnectionFields(ex.in.Header)
	for name := range ex.in.Trailer {
		if rule, _ := policy.RequestField(name); rule == policy.FieldKeyed && !connection[name] {
			if out.Trailer == nil {
				out.Trailer = http.Header{}
			}
			out.Trailer[name] = nil
		}
	}
	if out.Trailer != nil {
		out.Body = &trailedBody{ReadCloser: out.Body, g: g, ex: ex, out: out.Trailer}
	}
}

// trailedBody is a request body that sets the forwarded trailers at its end.
type trailedBody struct {
	io.ReadCloser
	g   *Gateway
	ex  *exchange
	out http.Header
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != io.EOF {
		return n, err
	}
	for name := range b.out {
		b.out[name] = b.ex.in.Trailer[name]
	}
	if refusal := b.g.findOwn(b.ex, b.out, "the trailer "); refusal != nil {
		return n, refusal
	}
	return n, err
}

// minOwn is the length of the shortest text that can contain a key or a token for this gateway.
const minOwn = 20

// holdsOwn reports whether a text of a request contains a key or a token for this gateway.
func (g *Gateway) holdsOwn(ex *exchange, text string) bool {
	return g.HoldsOwn != nil && len(text) >= minOwn && g.HoldsOwn(ex.in, text)
}

// ownRefusal refuses a request that would send a key or a token for this gateway upstream.
func ownRefusal(place string) *failure {
	return &failure{
		status: http.StatusBadRequest, detail: "key",
		message: "Bad Request: " + place + " has a key or a token for this gateway, which must not reach the API; send it only in Authorization",
	}
}

// findOwn returns the refusal for a key or a token for this gateway in fields or trailers, or nil.
func (g *Gateway) findOwn(ex *exchange, fields http.Header, kind string) *failure {
	for name, values := range fields {
		if name == "Via" { // the last value is that of the gateway
			values = values[:len(values)-len(g.via)]
		}
		if slices.ContainsFunc(values, func(value string) bool { return g.holdsOwn(ex, value) }) {
			return ownRefusal(kind + name)
		}
	}
	return nil
}

// checkOwn refuses a request that would send a key or a token for this gateway upstream. It checks the forwarded fields, the
// path and the query, and the fields for credentials: their client expects that they arrive.
func (g *Gateway) checkOwn(a *attempt) error {
	if g.HoldsOwn == nil {
		return nil
	}
	holds := func(text string) bool { return g.holdsOwn(a.exchange, text) }
	if refusal := g.findOwn(a.exchange, a.header, "the field "); refusal != nil {
		return refusal
	}
	if refusal := g.findOwn(a.exchange, a.credentials, "the field "); refusal != nil {
		return refusal
	}
	for parameter := range strings.SplitSeq(a.match.Query, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		switch {
		case holds(name):
			return ownRefusal("the name of a query parameter")
		case holds(value):
			return ownRefusal("the query parameter " + name)
		}
	}
	for segment := range strings.SplitSeq(a.match.Path, "/") {
		if holds(segment) {
			return ownRefusal("the path")
		}
	}
	return nil
}

// hasPassed reports whether a request has passed this gateway before. The gateway's Via value is unique.
func (g *Gateway) hasPassed(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Via"], func(value string) bool { return strings.Contains(value, g.via[0]) })
}
