package proxy

import (
	"net/url"
	"regexp"
)

// page matches the parameters of a link to a page of the same list (RFC 8288).
var page = regexp.MustCompile(`(?i);\s*rel="?(next|prev|first|last)\b`)

// noteForeignName logs, once, that the upstream names itself by a URL that is not in g.names. A client that follows the URL
// bypasses the gateway with its key. parameters are those of a link.
func (g *Gateway) noteForeignName(field, raw, parameters string) {
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || g.Host != "" {
		return
	}
	_, own := g.names.Path(u, g.Catalogue)
	isPage := u.Host != "" && !own && page.MatchString(parameters)
	if isPage || g.names.Foreign(u, g.Catalogue) {
		g.nameWarning.Do(func() {
			g.Log.Warn("upstream names itself by another host; clients that follow its URLs bypass the gateway with their keys",
				"field", field, "host", u.Scheme+"://"+u.Host, "remedy", "if the host is the API, add it to upstream.aliases")
		})
	}
}
