package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
)

// Dialect is what differs between the documents' service and the real
// upstream: header names, media types, messages. It is data only; see
// dialects.yaml for the meaning of each field.
type Dialect struct {
	Name             string                `yaml:"-"`
	VersionHeader    string                `yaml:"version_header"`
	Version          string                `yaml:"version"`
	Vendor           string                `yaml:"vendor"`
	Documentation    string                `yaml:"documentation"`
	SecurityBot      string                `yaml:"security_bot"`
	Tokens           map[string]CallerKind `yaml:"tokens"`
	Forward          []string              `yaml:"forward"`
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
	Messages struct {
		Primary   string `yaml:"primary"`
		Secondary string `yaml:"secondary"`
	} `yaml:"messages"`
}

var dialects = mustDecode[map[string]*Dialect]("dialects.yaml")

// LoadDialect returns the dialect of that name: "service" or "github".
func LoadDialect(name string) (*Dialect, error) {
	d := dialects[name]
	if d == nil {
		var names []string
		for n := range dialects {
			names = append(names, n)
		}
		sort.Strings(names)
		return nil, fmt.Errorf("unknown dialect %q: must be one of %s", name, strings.Join(names, ", "))
	}
	named := *d
	named.Name = name
	return &named, nil
}

// Kind says what an Authorization value makes its sender, as far as its form
// tells: Basic is an OAuth app's client id and secret (Document B section
// 5.6), prefixes of tokens tell more where the dialect knows some. The
// upstream's first answer corrects the limit that follows from it.
func (d *Dialect) Kind(scheme, credential string) CallerKind {
	if strings.EqualFold(scheme, "basic") {
		return OAuthApp
	}
	for prefix, kind := range d.Tokens {
		if strings.HasPrefix(credential, prefix) {
			return kind
		}
	}
	return User
}

// EntityTag is the ETag that the upstream gives a body which it sends as the answer
// to a request with these fields, where [Dialect.ETag] says how it makes them.
func (d *Dialect) EntityTag(field func(name string) string, body []byte) string {
	sum := sha256.New()
	for _, name := range d.ETag {
		if value := field(name); value != "" {
			_, _ = io.WriteString(sum, value+":") // a hash takes everything
		}
	}
	_, _ = sum.Write(body)
	return strconv.Quote(hex.EncodeToString(sum.Sum(nil)))
}

// Accept brings the Accept values that ask for one representation to one
// form: an absent or empty one, "*/*", "application/json",
// "application/vnd.VENDOR+json", "application/vnd.VENDOR.v3+json" and lists of
// nothing else are the plain representation, written "". Anything else is its
// own: members and their order are kept, for the upstream may take the first
// that it knows; so are case and inner blanks, for a type that it does not know
// must not share an answer with one that it does.
func (d *Dialect) Accept(values []string) string {
	own := false
	for _, value := range values {
		for member := range strings.SplitSeq(value, ",") {
			own = own || !d.plain(strings.Trim(member, " \t"))
		}
	}
	if !own {
		return ""
	}
	var members []string
	for _, value := range values {
		for member := range strings.SplitSeq(value, ",") {
			members = append(members, strings.Trim(member, " \t"))
		}
	}
	return strings.Join(members, ",")
}

// MediaType is the plain representation by its own name.
func (d *Dialect) MediaType() string { return "application/vnd." + d.Vendor + "+json" }

func (d *Dialect) plain(mediaType string) bool {
	switch mediaType {
	case "", "*/*", "application/json":
		return true
	}
	rest, ok := strings.CutPrefix(mediaType, "application/vnd."+d.Vendor)
	return ok && (rest == "+json" || rest == ".v3+json")
}
