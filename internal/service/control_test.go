package service

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestControlEndpointsAllowTheirMethods(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			method, path string
			status       int
			allow        string
		}{
			{"GET", "violations", 200, ""}, {"HEAD", "violations", 200, ""}, {"POST", "violations", 405, "DELETE, GET"},
			{"DELETE", "webhooks", 405, "GET, PUT"}, {"GET", "events", 405, "POST"}, {"PUT", "deliveries", 405, "GET"},
			{"GET", "", 404, ""}, {"GET", "nothing", 404, ""},
		} {
			w := t.do("", c.method, controlPrefix+c.path, "")
			if w.Code != c.status || w.Header().Get("Allow") != c.allow {
				t.Errorf("%s %s: got %d, Allow %q", c.method, c.path, w.Code, w.Header().Get("Allow"))
			}
		}
	})
}

// TestBanLastsUntilReset sends requests during the waiting time until the caller is banned.
func TestBanLastsUntilReset(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{SecondaryEvery: 1})
		for range banAfter + 1 {
			t.get("owner", "/gitignore/templates")
			time.Sleep(time.Millisecond)
		}
		t.wantStatus(t.do("", http.MethodDelete, "/_service/faults", ""), 200)
		time.Sleep(2 * time.Hour)
		w := t.get("owner", "/gitignore/templates")
		if w.Code != 403 || !strings.Contains(w.Body.String(), "banned") || w.Header().Get("Retry-After") != "" || !t.s.Violations().Banned {
			t.Errorf("got %d %v %s, want a ban", w.Code, w.Header(), w.Body)
		}
		t.wantStatus(t.get("member", "/gitignore/templates"), 200)
		t.wantStatus(t.do("", http.MethodDelete, "/_service/violations", ""), 200)
		w = t.get("owner", "/gitignore/templates")
		if v := t.s.Violations(); w.Code != 200 || v.Banned || v.SentWhileLimited != 0 || v.Answered["core"] != 1 {
			t.Errorf("after the reset: got %d, %+v", w.Code, v)
		}
	})
}

func TestClockOffsetShiftsTheResetTime(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{ClockOffset: Duration(2 * time.Hour)})
		w := t.get("owner", "/rate_limit")
		core := decode[struct{ Rate struct{ Reset int64 } }](t, w)
		if reset := time.Unix(core.Rate.Reset, 0); time.Until(reset) < 2*time.Hour || w.Header().Get("X-Ratelimit-Reset") != itoa(int(core.Rate.Reset)) {
			t.Errorf("got headers %v and body %s", w.Header(), w.Body)
		}
	})
}
