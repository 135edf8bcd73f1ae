// Package names translates URLs between the gateway and an API, which may name itself in several ways.
package names

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/weirgate/weir/policy"
)

// EnterprisePrefix is the path prefix of the API on self-hosted instances. Weir accepts paths with and without the
// prefix.
const EnterprisePrefix = "/api/v3"

// List contains the base URLs by which an API names itself. The first is the URL that the gateway calls. A base URL with
// [EnterprisePrefix] at its end, and one without it, name the same API.
type List []*url.URL

// Path returns the path of a URL below one of the base URLs, without EnterprisePrefix. For other URLs, Path returns the
// whole path and false. Below a base URL with EnterprisePrefix, a URL without the prefix may be a page for people, so it
// must name an operation of the catalogue.
func (n List) Path(u *url.URL, catalogue *policy.Catalogue) (path string, ok bool) {
	whole := u.EscapedPath()
	for _, base := range n {
		root, enterprise := rootOf(base)
		path, below := Below(u, base, root)
		if !below {
			continue
		}
		if rest, prefixed := strings.CutPrefix(path, EnterprisePrefix); prefixed && (rest == "" || rest[0] == '/') {
			return rest, true
		}
		if !enterprise || isOperation(catalogue, path) {
			return path, true
		}
	}
	return whole, false
}

// Below returns the path of a URL below a path of the host of a base URL.
func Below(u, base *url.URL, root string) (path string, ok bool) {
	path, ok = strings.CutPrefix(u.EscapedPath(), root)
	return path, ok && (path == "" || path[0] == '/') && strings.EqualFold(u.Scheme, base.Scheme) &&
		strings.EqualFold(u.Hostname(), base.Hostname()) && Port(u) == Port(base)
}

// Prefixes returns the beginnings of the URLs of the API, the longest of each base URL first.
func (n List) Prefixes() (list []string) {
	for _, base := range n {
		root, enterprise := rootOf(base)
		root = base.Scheme + "://" + base.Host + root
		list = append(list, root+EnterprisePrefix)
		if !enterprise {
			list = append(list, root)
		}
	}
	return list
}

// Foreign reports whether a URL leads to an operation of the API by a name that is not in n.
func (n List) Foreign(u *url.URL, catalogue *policy.Catalogue) bool {
	if _, own := n.Path(u, catalogue); own || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	path := u.EscapedPath()
	if root, _ := rootOf(n[0]); root != "" {
		path = strings.TrimPrefix(path, root)
	}
	path = strings.TrimPrefix(path, EnterprisePrefix)
	return strings.Trim(path, "/") != "" && isOperation(catalogue, path) // any host has a root
}

// rootOf returns the path of a base URL without EnterprisePrefix at its end, and whether the path had it.
func rootOf(base *url.URL) (root string, enterprise bool) {
	return strings.CutSuffix(strings.TrimSuffix(base.EscapedPath(), "/"), EnterprisePrefix)
}

// isOperation reports whether a path belongs to an operation of the catalogue.
func isOperation(catalogue *policy.Catalogue, path string) bool {
	m, err := catalogue.Classify("GET", path, "")
	return err == nil && m.Operation.Known()
}

// Port returns the port of a URL, or the default port of the scheme.
func Port(u *url.URL) int {
	switch number, _ := strconv.Atoi(u.Port()); {
	case u.Port() != "":
		return number
	case strings.EqualFold(u.Scheme, "https"):
		return 443
	}
	return 80
}
