package proxy

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
)

// minCoded is the size of the smallest body that is encoded. A smaller response usually fits into one TCP segment.
const minCoded = 1 << 10

// uncoded contains the response fields that exclude a content coding: the content is encoded already or has a digest
// (RFC 9530).
var uncoded = []string{"Content-Encoding", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"}

// selectCoding returns the content coding for a response whose identity form has this length, or nil for identity. The
// length is -1 if unknown. If the coding depends on the client, selectCoding also sets Vary. For a coding, selectCoding
// sets Content-Encoding and a weak ETag, and removes Accept-Ranges and Content-Length.
func (a *attempt) selectCoding(status int, h http.Header, length int64) *contentcoding.Coding {
	has := func(name string) bool { return len(h[name]) > 0 }
	if 0 <= length && length < minCoded || slices.ContainsFunc(uncoded, has) ||
		cache.ParseDirectives(h["Cache-Control"]).Has("no-transform") ||
		status != http.StatusNotModified && !contentcoding.Compressible(h.Get("Content-Type")) {
		return nil
	}
	if !httpguts.HeaderValuesContainsToken(h["Vary"], "Accept-Encoding") && !httpguts.HeaderValuesContainsToken(h["Vary"], "*") {
		h["Vary"] = append(h["Vary"], "Accept-Encoding")
	}
	c := contentcoding.Select(a.acceptEncoding)
	if status == http.StatusNotModified {
		a.weakenConfirmed(h, c)
		return nil
	}
	if c == nil || a.ranged || has("Content-Range") || a.cacheControl.Has("no-transform") {
		return nil
	}
	h.Del("Accept-Ranges") // ranges are parts of the identity form
	h.Del("Content-Length")
	h.Set("Content-Encoding", c.Name)
	weaken(h)
	return c
}

// weaken makes a strong ETag weak, because two content codings must not share a strong ETag (RFC 9110 section 8.8.3.3).
func weaken(h http.Header) {
	if etag := h.Get("Etag"); strings.HasPrefix(etag, `"`) {
		h.Set("Etag", "W/"+etag)
	}
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

// weakenConfirmed sets the ETag of a 304 to the form that the client has stored (RFC 9111 section 4.3.4): the weak form
// if the client sent that form, or may have stored a coded response without sending its ETag.
func (a *attempt) weakenConfirmed(h http.Header, c *contentcoding.Coding) {
	sent := a.in.Header["If-None-Match"]
	if len(sent) == 0 && c != nil || strings.Contains(strings.Join(sent, ","), "W/"+h.Get("Etag")) {
		weaken(h)
	}
}

// storedContent returns the body of a stored response in the content coding of the client, and sets the fields in h.
func (g *Gateway) storedContent(a *attempt, e *cache.Entry, status int, h http.Header) []byte {
	c := a.selectCoding(status, h, int64(len(e.Body)))
	if c == nil {
		return e.Body
	}
	body := g.Cache.Coded(a.key, e, c)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	return body
}

// encode applies a content coding to a response that the upstream sent in identity form. A stored response is encoded
// already.
func (a *attempt) encode(resp *http.Response) {
	if !a.identityAsked {
		return
	}
	length := resp.ContentLength
	if resp.StatusCode == http.StatusNotModified || resp.StatusCode == http.StatusPartialContent {
		length = -1 // the length of the complete content is unknown
	}
	c := a.selectCoding(resp.StatusCode, resp.Header, length)
	if c == nil {
		return
	}
	resp.ContentLength = -1 // the ReverseProxy then flushes each write
	if a.method != http.MethodHead {
		resp.Body = c.Reader(resp.Body)
	}
}

// passCoding lets the upstream select the content coding of a response that will probably not be stored.
func (a *attempt) passCoding() {
	if len(a.acceptEncoding) > 0 {
		a.identityAsked = false
	}
}
