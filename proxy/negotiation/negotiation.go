// Package negotiation selects the content coding of a response for its client (RFC 9110 section 12).
package negotiation

import (
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
)

// Client is the part of a request that decides about the coding of its response.
type Client struct {
	AcceptEncoding, IfNoneMatch []string
	CacheControl                cache.Directives
	Ranged                      bool // a range of the identity form is requested
}

// SelectCoding returns the content coding for a response whose identity form has this length, or nil for identity. The
// length is -1 if unknown. By default Weir offers all codings. If the coding depends on the client, SelectCoding also sets
// Vary. For a coding, SelectCoding sets Content-Encoding and a weak ETag, and removes Accept-Ranges and Content-Length.
func (client Client) SelectCoding(status int, h http.Header, length int64, offered ...*contentcoding.Coding) *contentcoding.Coding {
	has := func(name string) bool { return len(h[name]) > 0 }
	if 0 <= length && length < minCoded || slices.ContainsFunc(uncoded, has) ||
		status != http.StatusNotModified && !contentcoding.Compressible(h.Get("Content-Type")) ||
		cache.ParseDirectives(h["Cache-Control"]).Has("no-transform") {
		return nil
	}
	if !httpguts.HeaderValuesContainsToken(h["Vary"], "Accept-Encoding") && !httpguts.HeaderValuesContainsToken(h["Vary"], "*") {
		h["Vary"] = append(h["Vary"], "Accept-Encoding")
	}
	c := contentcoding.Select(client.AcceptEncoding, offered...)
	if status == http.StatusNotModified {
		client.weakenConfirmed(h, c)
		return nil
	}
	if c == nil || client.Ranged || has("Content-Range") || client.CacheControl.Has("no-transform") {
		return nil
	}
	h.Del("Accept-Ranges") // ranges are parts of the identity form
	h.Del("Content-Length")
	h.Set("Content-Encoding", c.Name)
	weaken(h)
	return c
}

// minCoded is the size of the smallest body that is encoded. A smaller response usually fits into one TCP segment.
const minCoded = 1 << 10

// uncoded contains the response fields that exclude a content coding: the content is encoded already or has a digest
// (RFC 9530).
var uncoded = []string{"Content-Encoding", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"}

// weaken makes a strong ETag weak, because two content codings must not share a strong ETag (RFC 9110 section 8.8.3.3).
func weaken(h http.Header) {
	if etag := h.Get("Etag"); strings.HasPrefix(etag, `"`) {
		h.Set("Etag", "W/"+etag)
	}
}

// weakenConfirmed sets the ETag of a 304 to the form that the client has stored (RFC 9111 section 4.3.4): the weak form
// if the client sent that form, or may have stored a coded response without sending its ETag.
func (client Client) weakenConfirmed(h http.Header, c *contentcoding.Coding) {
	if len(client.IfNoneMatch) == 0 && c != nil || strings.Contains(strings.Join(client.IfNoneMatch, ","), "W/"+h.Get("Etag")) {
		weaken(h)
	}
}
