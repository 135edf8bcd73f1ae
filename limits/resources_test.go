package limits

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// rateHeader returns the rate headers of a response that names a resource.
func rateHeader(resource string) http.Header {
	h := http.Header{}
	for name, value := range map[string]string{"Limit": "30", "Used": "3", "Reset": fmt.Sprint(time.Now().Add(time.Minute).Unix()), "Resource": resource} {
		h.Set("X-Ratelimit-"+name, value)
	}
	return h
}

func TestReadRateRefusesInvalidResourceNames(t *testing.T) {
	l := NewLimiter(nil)
	for _, name := range []string{"core", "audit_log", "export-jobs.v2", "a", strings.Repeat("a", 64), ""} {
		r := l.ReadRate(rateHeader(name))
		failIf(t, r.Invalid || r.Resource != name || r.Limit != 30, "%q: got %+v", name, r)
	}
	for _, name := range []string{"Core", "a b", "a:b", "a/b", "é", strings.Repeat("a", 65), "points", "cpu", "content", "concurrency"} {
		r := l.ReadRate(rateHeader(name))
		failIf(t, r != (policy.Rate{Invalid: true}), "%q: got %+v, want invalid headers", name, r)
	}
	if r := l.ReadRate(http.Header{}); r != (policy.Rate{}) {
		t.Errorf("no headers: got %+v", r)
	}
}

// A hostile upstream names a new resource in every response.
func TestReadRateBoundsTheResources(t *testing.T) {
	l := NewLimiter(nil)
	var work sync.WaitGroup
	var mu sync.Mutex
	accepted := map[string]bool{}
	for i := range 8 {
		work.Go(func() {
			for n := range 300 {
				name := fmt.Sprint("name-", (n+i*37)%300)
				if r := l.ReadRate(rateHeader(name)); !r.Invalid {
					mu.Lock()
					accepted[name] = true
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	failIf(t, len(accepted) != maxResources, "%d resources were accepted, want %d", len(accepted), maxResources)
	for name := range accepted {
		failIf(t, l.ReadRate(rateHeader(name)).Invalid, "%q is refused after it was accepted", name)
	}
	for _, name := range []string{"core", "audit_log", ""} {
		failIf(t, l.ReadRate(rateHeader(name)).Invalid, "%q is refused after the set is full", name)
	}
}
