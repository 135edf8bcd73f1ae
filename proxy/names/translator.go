package names

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"golang.org/x/time/rate"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// Translator translates URLs between one upstream and the gateway.
type Translator struct {
	upstream  *url.URL // receives the requests
	names     List     // upstream, and its aliases
	files     bool     // the upstream has files instead of the API
	catalogue *policy.Catalogue
	log       *slog.Logger
	warning   rate.Sometimes // limits the warnings about other names to one
}

// NewTranslator returns a translator for an upstream.
func NewTranslator(upstream *url.URL, aliases []*url.URL, files bool, catalogue *policy.Catalogue, log *slog.Logger) *Translator {
	return &Translator{
		upstream: upstream, names: append(List{upstream}, aliases...), files: files, catalogue: catalogue, log: log, warning: rate.Sometimes{First: 1},
	}
}

// Target returns the upstream URL of a canonical request target.
func (t *Translator) Target(m policy.Match) url.URL {
	u := *t.upstream
	base := strings.TrimSuffix(u.EscapedPath(), "/")
	if m.Path == "/graphql" {
		if host, ok := strings.CutSuffix(base, EnterprisePrefix); ok {
			base = host + "/api"
		}
	}
	u.RawPath = base + m.Path
	u.Path, _ = url.PathUnescape(u.RawPath) // canonical paths have valid escapes
	u.RawQuery = m.Query
	return u
}

// Path returns the path of a URL of the upstream below its base, and false for other URLs. The paths of files stay
// unchanged.
func (t *Translator) Path(u *url.URL) (path string, ok bool) {
	if !t.files {
		return t.names.Path(u, t.catalogue)
	}
	return Below(u, t.upstream, strings.TrimSuffix(t.upstream.EscapedPath(), "/"))
}

// Localize replaces the upstream by the gateway in the URLs of Link, Location and Content-Location. URLs of other hosts stay
// unchanged. The gateway never sends a credential to other hosts. prefix is that of the client's path below its origin.
func (t *Translator) Localize(h http.Header, origin inbound.Origin, prefix string) {
	for _, name := range URLFields {
		if target := h.Get(name); target != "" {
			local := t.local(origin, prefix, target)
			if h.Set(name, local); local == target {
				t.noteForeign(name, target, "")
			}
		}
	}
	if links := h["Link"]; len(links) > 0 {
		rewritten := make([]string, len(links))
		for i, value := range links {
			rewritten[i] = t.localLinks(origin, prefix, value)
		}
		h["Link"] = rewritten
	}
}

// HaveURLs reports whether a response has fields that [Translator.Localize] may change.
func HaveURLs(h http.Header) bool {
	return len(h["Link"]) > 0 || len(h["Location"]) > 0 || len(h["Content-Location"]) > 0
}

// URLFields are the response fields with one URL.
var URLFields = [...]string{"Location", "Content-Location"}

// localLinks rewrites each <URI-Reference> of a Link field (RFC 8288 section 3). Angle brackets cannot occur in a URI
// or in an unquoted parameter. A quoted parameter is changed only if angle brackets in the parameter contain the
// upstream's URL.
func (t *Translator) localLinks(origin inbound.Origin, prefix, value string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(value, "<")
		uri, after, closed := strings.Cut(rest, ">")
		if !ok || !closed {
			b.WriteString(value)
			return b.String()
		}
		local := t.local(origin, prefix, uri)
		if local == uri {
			parameters, _, _ := strings.Cut(after, "<")
			t.noteForeign("Link", uri, parameters)
		}
		b.WriteString(before + "<" + local + ">")
		value = after
	}
}

// local translates a URL below the upstream's base into the URL for the same target at the gateway. Other URLs are
// returned unchanged, and so are URLs with the name by which the client calls the upstream, for example through the forward
// proxy. A path without a host needs a translation only if the upstream has a base path, or clients reach it below a prefix.
func (t *Translator) local(origin inbound.Origin, prefix, raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || u.Host != "" && strings.EqualFold(u.Host, origin.Host) {
		return raw
	}
	base := origin.String() + prefix
	prefix = origin.Prefix + prefix
	if moves := prefix != "" || strings.Trim(t.upstream.Path, "/") != ""; moves && u.Host == "" && u.Scheme == "" && strings.HasPrefix(u.Path, "/") {
		u.Scheme, u.Host = t.upstream.Scheme, t.upstream.Host
		base = cmp.Or(prefix, base) // a path alone could begin with two slashes, and would name a host
	}
	path, ok := t.Path(u)
	if !ok {
		return raw
	}
	local := base + path
	if u.RawQuery != "" {
		local += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		local += "#" + u.EscapedFragment()
	}
	return local
}

// page matches the parameters of a link to a page of the same list (RFC 8288).
var page = regexp.MustCompile(`(?i);\s*rel="?(next|prev|first|last)\b`)

// noteForeign logs, once, that the upstream names itself by a URL that is not in t.names. A client that follows the URL
// bypasses the gateway with its key. parameters are those of a link.
func (t *Translator) noteForeign(field, raw, parameters string) {
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || t.files {
		return
	}
	_, own := t.names.Path(u, t.catalogue)
	isPage := u.Host != "" && !own && page.MatchString(parameters)
	if isPage || t.names.Foreign(u, t.catalogue) {
		t.warning.Do(func() {
			t.log.Warn("upstream names itself by another host; clients that follow its URLs bypass the gateway with their keys",
				"field", field, "host", u.Scheme+"://"+u.Host, "remedy", "if the host is the API, add it to upstream.aliases")
		})
	}
}
