package inbound

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// deadlineRecorder is a response writer that records read deadlines.
type deadlineRecorder struct {
	http.ResponseWriter
	read []time.Time
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}

// testBody returns a body of two bytes for a version of HTTP.
func testBody(d *deadlineRecorder, version int) *Body {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("xx"))
	r.ProtoMajor = version
	_, b := LimitBody(d, r, time.Minute, 0)
	return b
}

func TestDetachedBodySetsNoDeadlines(t *testing.T) {
	for _, version := range []int{1, 2} {
		d := &deadlineRecorder{}
		b := testBody(d, version)
		if _, err := b.Read(make([]byte, 1)); err != nil || len(d.read) == 0 {
			t.Fatalf("HTTP/%d: got %v and %d deadlines, want at least one deadline", version, err, len(d.read))
		}
		b.Detach()
		before := len(d.read)
		if _, err := io.ReadAll(b); err != nil || len(d.read) != before {
			t.Errorf("HTTP/%d: got %v and %d more deadlines, want none", version, err, len(d.read)-before)
		}
	}
}

func TestHTTP2BodyHasDeadlinesOnlyInsideRead(t *testing.T) {
	d := &deadlineRecorder{}
	b := testBody(d, 2)
	if len(d.read) > 0 {
		t.Error("a deadline was set before the first read")
	}
	if _, err := b.Read(make([]byte, 1)); err != nil || len(d.read) != 2 || d.read[0].IsZero() || !d.read[1].IsZero() {
		t.Errorf("got deadlines %v and %v, want one deadline that is removed after the read", d.read, err)
	}
}

// slowReader needs one second for each read.
type slowReader struct{}

func (slowReader) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return len(p), nil
}

func TestBodyTotalCountsOnlyTimeInsideRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, "/", slowReader{})
		_, b := LimitBody(&deadlineRecorder{}, r, time.Minute, 5*time.Second)
		for i := range 5 {
			if _, err := b.Read(make([]byte, 4<<10)); err != nil {
				t.Errorf("read %d: %v", i, err)
			}
			time.Sleep(time.Hour)
		}
		_, err := b.Read(make([]byte, 4<<10))
		var invalid *BodyError
		if !errors.As(err, &invalid) || !invalid.Timeout || b.Err() == nil {
			t.Errorf("after five seconds: got %v, want a timeout", err)
		}
	})
}
