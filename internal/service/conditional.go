package service

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// validate sets the validators of a complete response. If the client's validators match, validate turns the response
// into a 304 (RFC 9110 section 13.2.2).
func (s *Service) validate(h http.Header, req *request, resp *response) {
	etag := s.entityTag(req, resp)
	h.Set("Etag", etag)
	if !resp.modified.IsZero() {
		h.Set("Last-Modified", resp.modified.UTC().Format(http.TimeFormat))
	}
	if !matches(req.Request, etag, resp.modified) {
		return
	}
	resp.status, resp.text = http.StatusNotModified, nil
	h.Del("Content-Type")
}

// entityTag returns the ETag of a response. The ETag depends only on the bytes and the media type, unless the quirk
// ETagsPerToken is set.
func (s *Service) entityTag(req *request, resp *response) string {
	hashed, format := resp.kind+"\n", `W/"%.16x"`
	if req.quirks.ETagsPerToken {
		hashed += req.Header.Get("Authorization") + "\n"
		if fields := s.config.Dialect.ETag; len(fields) > 0 {
			hashed, format = "", `"%x"` // a strong tag
			for _, name := range fields {
				if value := req.Header.Get(name); value != "" {
					hashed += value + ":"
				}
			}
		}
	}
	sum := sha256.New()
	_, _ = io.WriteString(sum, hashed) // a hash returns no error
	_, _ = sum.Write(resp.text)
	return fmt.Sprintf(format, sum.Sum(nil))
}

func matches(r *http.Request, etag string, modified time.Time) bool {
	if lists := r.Header.Values("If-None-Match"); len(lists) > 0 {
		for tag := range strings.SplitSeq(strings.Join(lists, ","), ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(etag, "W/") {
				return true
			}
		}
		return false
	}
	ifModifiedSince := r.Header.Get("If-Modified-Since")
	if ifModifiedSince == "" || modified.IsZero() {
		return false
	}
	since, err := http.ParseTime(ifModifiedSince)
	return err == nil && !modified.Truncate(time.Second).After(since)
}
