package cache

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Former is a state of a resource that was replaced by another one.
type Former struct {
	State string
	// Until is the end of the time in which the upstream may still return the state.
	Until time.Time
}

// maxFormer bounds the former states of an entry.
const maxFormer = 4

// stateOf returns a text that identifies the state that a response shows, or an empty string if it does not show one.
func stateOf(status int, h http.Header) string {
	if status == http.StatusNotFound {
		return strconv.Itoa(status)
	}
	if tag := h.Get("Etag"); status == http.StatusOK && isETag(tag) {
		return strings.TrimPrefix(tag, "W/")
	}
	return ""
}

// Replaces records that the entry shows a later state than an older entry. For the time lag, the upstream may still return
// the older state. A nil older entry has no effect.
func (e *Entry) Replaces(older *Entry, lag time.Duration) {
	e.Former = nil
	if older == nil {
		return
	}
	list := older.Former
	if state := stateOf(older.Status, older.Header); state != "" {
		list = append(list[:len(list):len(list)], Former{state, e.Answered.Add(lag)})
	}
	own := stateOf(e.Status, e.Header)
	for _, f := range list {
		if f.State != own && f.Until.After(e.Answered) {
			e.Former = append(e.Former, f)
		}
	}
	e.Former = e.Former[max(0, len(e.Former)-maxFormer):]
}

// Succeeds reports whether a response that was requested later shows an earlier state than the entry: a former state, or if
// the response is suspect, a 404 or one with an earlier Last-Modified.
func (e *Entry) Succeeds(status int, h http.Header, f Fetch, now time.Time) bool {
	state := stateOf(status, h)
	if state == stateOf(e.Status, e.Header) {
		return false
	}
	for _, f := range e.Former {
		if f.State == state && now.Before(f.Until) {
			return true
		}
	}
	if f.Suspect == "" || e.Status != http.StatusOK {
		return false
	}
	if status == http.StatusOK {
		modified, err := parseDate(h.Get("Last-Modified"))
		own, ownErr := parseDate(e.Header.Get("Last-Modified"))
		return err == nil && ownErr == nil && modified.Before(own)
	}
	return status == http.StatusNotFound
}

// Lagged returns a copy of the entry that is suspect, because the upstream has returned an earlier state.
func (e *Entry) Lagged() *Entry {
	suspect := *e
	suspect.Suspect = CauseLag
	return &suspect
}
