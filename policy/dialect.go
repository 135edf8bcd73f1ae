package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Dialect holds the differences between the service of the documents and the real API: header names, media types and
// messages. dialects.yaml explains each field.
type Dialect struct {
	Name             string                `yaml:"-"`
	PublicHost       string                `yaml:"public_host"`
	Hosts            []string              `yaml:"hosts"`
	Paths            []string              `yaml:"paths"`
	VersionHeader    string                `yaml:"version_header"`
	Version          string                `yaml:"version"`
	Versions         []string              `yaml:"versions"`
	Ending           []Ending              `yaml:"ending"`
	NoRateSince      string                `yaml:"no_rate_since"`
	Vendor           string                `yaml:"vendor"`
	Documentation    string                `yaml:"documentation"`
	SecurityBot      string                `yaml:"security_bot"`
	Tokens           map[string]CallerKind `yaml:"tokens"`
	UnprefixedToken  *regexp.Regexp        `yaml:"unprefixed_token"`
	ClientID         *regexp.Regexp        `yaml:"client_id"`
	Schemes          []string              `yaml:"schemes"`
	VaryByCredential []string              `yaml:"vary_by_credential"`
	Describe         []string              `yaml:"describe"`
	ETag             []string              `yaml:"etag"`
	Webhook          struct {
		UserAgent  string `yaml:"user_agent"`
		Event      string `yaml:"event"`
		Delivery   string `yaml:"delivery"`
		HookID     string `yaml:"hook_id"`
		TargetType string `yaml:"target_type"`
		TargetID   string `yaml:"target_id"`
	} `yaml:"webhook"`
	RefusalStatus int    `yaml:"refusal_status"`
	RequestID     string `yaml:"request_id"`
	StatusMember  bool   `yaml:"status_member"`
	Messages      struct {
		Primary   string `yaml:"primary"`
		Secondary string `yaml:"secondary"`
	} `yaml:"messages"`
}

var dialects = mustDecode[map[string]*Dialect]("dialects.yaml")

// LoadDialect returns the dialect "service" or "github", and an error for other names.
func LoadDialect(name string) (*Dialect, error) {
	d := dialects[name]
	if d == nil {
		names := slices.Sorted(maps.Keys(dialects))
		return nil, fmt.Errorf("unknown dialect %q; use one of %s", name, strings.Join(names, ", "))
	}
	named := *d
	named.Name = name
	return &named, nil
}

// DialectOf returns the name of the dialect of the API at a base URL, and the part of the URL that shows it. A host is
// certain, because only that API has it. A URL that shows nothing has the dialect "service" and no reason.
func DialectOf(base *url.URL) (name, reason string, certain bool) {
	host := strings.ToLower(base.Hostname())
	for name, d := range dialects {
		if slices.ContainsFunc(d.Hosts, func(h string) bool { return host == h || strings.HasSuffix(host, "."+h) }) {
			return name, "the host " + host, true
		}
		for _, path := range d.Paths {
			if base.Path == path || strings.HasPrefix(base.Path, path+"/") {
				return name, "the path " + path, false
			}
		}
	}
	return "service", "", false
}

// DialectOfResponse returns the name of the dialect whose request ID the header contains, or an empty text.
func DialectOfResponse(h http.Header) (name string) {
	for candidate, d := range dialects {
		if h.Get(d.RequestID) == "" {
			continue
		}
		if name != "" {
			return "" // a proxy in front of the API adds fields
		}
		name = candidate
	}
	return name
}

// HasScheme reports whether an authentication scheme is one of the dialect's own.
func (d *Dialect) HasScheme(scheme string) bool {
	return slices.ContainsFunc(d.Schemes, func(own string) bool { return strings.EqualFold(own, scheme) })
}

// Resources returns the resources of the rate limit status, in their order.
func (d *Dialect) Resources() []string { return resourcesOf(d.Name) }

// Kind returns the kind of an Authorization value: Basic holds the client id and secret of an OAuth app (Document B
// section 5.6), and known token prefixes name other kinds. The first response corrects the resulting limit.
func (d *Dialect) Kind(scheme, credential string) CallerKind {
	if strings.EqualFold(scheme, "basic") {
		return OAuthApp
	}
	return cmp.Or(d.kindOfToken(credential), User)
}

// HasTokenPrefix reports whether a credential begins like a token of the upstream.
func (d *Dialect) HasTokenPrefix(credential string) bool { return d.kindOfToken(credential) != "" }

// kindOfToken returns the kind that the prefix of a token shows, or an empty kind.
func (d *Dialect) kindOfToken(credential string) CallerKind {
	for prefix, kind := range d.Tokens {
		if strings.HasPrefix(credential, prefix) {
			return kind
		}
	}
	return ""
}

// IsTokenOfPair reports whether a part of a Basic pair is a token. other is the other part.
func (d *Dialect) IsTokenOfPair(part, other string) bool {
	matches := func(expression *regexp.Regexp, text string) bool {
		return expression != nil && expression.MatchString(text)
	}
	return d.HasTokenPrefix(part) || matches(d.UnprefixedToken, part) && !matches(d.ClientID, other)
}

// EntityTag returns the ETag that the upstream computes for a body, from the request fields in [Dialect.ETag].
func (d *Dialect) EntityTag(field func(name string) string, body []byte) string {
	sum := sha256.New()
	for _, name := range d.ETag {
		if value := field(name); value != "" {
			_, _ = io.WriteString(sum, value+":") // hash.Hash never returns an error
		}
	}
	_, _ = sum.Write(body)
	return strconv.Quote(hex.EncodeToString(sum.Sum(nil)))
}

// Accept returns the same form for all Accept values of one representation. The form of the plain representation is "".
// The plain values are no value, "*/*", "application/json", "application/vnd.VENDOR+json",
// "application/vnd.VENDOR.v3+json", and lists of these. Other values keep their members, order, case and blanks,
// because the upstream may treat any difference as another type.
func (d *Dialect) Accept(values []string) string {
	for member := range Members(values) {
		if !d.isPlain(member) {
			return strings.Join(slices.Collect(Members(values)), ",")
		}
	}
	return ""
}

// SelectsFile reports whether an Accept value may select a representation that is a text of a user, such as a file. Other
// representations are JSON of the API.
func (d *Dialect) SelectsFile(values []string) bool {
	for member := range Members(values) {
		mediaType, _, _ := strings.Cut(member, ";")
		mediaType = lower(strings.TrimRight(mediaType, " \t"))
		ofVendor := strings.HasPrefix(mediaType, "application/vnd."+d.Vendor) && strings.HasSuffix(mediaType, "+json") && !strings.Contains(mediaType, "raw")
		if !ofVendor && !d.isPlain(mediaType) && !slices.Contains(genericTypes, mediaType) {
			return true
		}
	}
	return false
}

// genericTypes are the other media types that browsers and client libraries list for all requests.
var genericTypes = []string{"text/*", "text/plain", "text/html", "text/json", "application/*", "application/xml", "application/xhtml+xml"}

// MediaType returns the vendor media type of the plain representation.
func (d *Dialect) MediaType() string { return "application/vnd." + d.Vendor + "+json" }

func (d *Dialect) isPlain(mediaType string) bool {
	switch mediaType {
	case "", "*/*", "application/json":
		return true
	}
	rest, ok := strings.CutPrefix(mediaType, "application/vnd."+d.Vendor)
	return ok && (rest == "+json" || rest == ".v3+json")
}
