package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
)

// TestWhoIsReadyRunsBeforeTheWire: an attempt lets others run before it is sent.
func TestWhoIsReadyRunsBeforeTheWire(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const tries = 50 // the scheduler now and then looks elsewhere first
	lets := 0
	for range tries {
		var another atomic.Bool
		g := &Gateway{Config: Config{Timeout: time.Minute, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			if another.Load() {
				lets++
			}
			return nil, io.ErrUnexpectedEOF
		})}}
		go another.Store(true)
		_, _, _ = g.send(&exchange{}, httptest.NewRequest(http.MethodGet, "/", nil), limits.Permit{})
	}
	if lets < tries/2 {
		t.Errorf("another ran first %d times of %d", lets, tries)
	}
}
