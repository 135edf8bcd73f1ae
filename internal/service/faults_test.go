package service

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func TestFaultsCanBeChangedAtRunTime(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.wantStatus(t.do("", http.MethodPut, "/_service/faults", `{"clock_offset":"1h","limit_status":429}`), 200)
		got := decode[Faults](t, t.get("", "/_service/faults"))
		if got != (Faults{ClockOffset: Duration(time.Hour), LimitStatus: 429}) {
			t.Errorf("got faults %+v", got)
		}
		date, err := http.ParseTime(t.get("owner", "/gitignore/templates").Header().Get("Date"))
		if err != nil || time.Until(date) < 59*time.Minute {
			t.Errorf("got Date %v, error %v", date, err)
		}
		for _, wrong := range []string{
			`{"delay":"1s"}`, `{"delay_before":"soon"}`, `{"limit_status":404}`, `{"error_status":404}`, `{"error_every":-1}`, `{"latency":"-1s"}`, `{"latency":200}`, `{`,
		} {
			w := t.do("", http.MethodPut, "/_service/faults", wrong)
			if name, _, _ := strings.Cut(strings.TrimLeft(wrong, `{"`), `"`); w.Code != 400 || !json.Valid(w.Body.Bytes()) || !strings.Contains(w.Body.String(), name) {
				t.Errorf("%s: got %d %s, want 400", wrong, w.Code, w.Body)
			}
		}
	})
}

func TestLatencyIsTheMinimumDuration(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{Latency: Duration(time.Second), DelayBefore: Duration(time.Second)})
		for range 20 {
			began := time.Now()
			t.get("owner", "/gitignore/templates")
			if took := time.Since(began); took < time.Second || took > 2*time.Second {
				t.Errorf("the request took %v", took)
			}
		}
	})
}

func TestErrorEveryFailsRequests(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{ErrorEvery: 3})
		var statuses []int
		for range 6 {
			statuses = append(statuses, t.get("owner", "/gitignore/templates").Code)
		}
		if want := []int{200, 200, 502, 200, 200, 502}; !slices.Equal(statuses, want) {
			t.Errorf("got statuses %v, want %v", statuses, want)
		}
		t.s.setFaults(Faults{ErrorEvery: 1, ErrorStatus: 503})
		w := t.get("owner", "/gitignore/templates")
		if w.Code != 503 || w.Header().Get("X-RateLimit-Used") != "7" || decode[problemBody](t, w).Message == "" {
			t.Errorf("got %d %v %s, want a counted error with a message", w.Code, w.Header(), w.Body)
		}
	})
}

func TestTruncateEveryTruncatesBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{TruncateEvery: 2})
		l := testservers.ServePipe(t.T, "service.test:80", &http.Server{Handler: t.s})
		transport := &http.Transport{DialContext: l.Dial}
		defer transport.CloseIdleConnections()
		for i, want := range []error{nil, io.ErrUnexpectedEOF, nil, io.ErrUnexpectedEOF} {
			resp, err := (&http.Client{Transport: transport}).Get("http://service.test/gitignore/templates/Go")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if !errors.Is(err, want) || resp.StatusCode != http.StatusOK || len(body) == 0 || json.Valid(body) != (want == nil) {
				t.Errorf("response %d: got %d %q, error %v", i, resp.StatusCode, body, err)
			}
		}
	})
}

func TestEndless202NeverCompletesStatistics(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{Endless202: true})
		for range 10 {
			t.wantStatus(t.get("owner", "/repos/acme/widgets/stats/punch_card"), 202)
			time.Sleep(time.Minute)
		}
		t.s.setFaults(Faults{})
		t.wantStatus(t.get("owner", "/repos/acme/widgets/stats/punch_card"), 200)
	})
}

func TestHeadersBehindSendsOlderRateLimitHeaders(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{HeadersBehind: 5})
		fell := false
		last := 0
		for i := range 100 {
			used, err := strconv.Atoi(t.get("owner", "/gitignore/templates").Header().Get("X-RateLimit-Used"))
			if err != nil || used > i+1 || used < max(0, i-4) {
				t.Fatalf("request %d: got used %d, error %v", i+1, used, err)
			}
			fell, last = fell || used < last, used
		}
		if !fell {
			t.Error("the headers never showed an earlier request")
		}
	})
}

func TestETagsPerTokenDiffer(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		runWithService(t, func(t *tester) {
			other := t.serviceInDialect(name)
			etag := func(credential string) string {
				return other.get(credential, "/gitignore/templates").Header().Get("ETag")
			}
			if etag("owner") != etag("owner-2") {
				t.Error("ETags depend on the token without the fault")
			}
			other.s.setFaults(Faults{ETagsPerToken: true})
			if etag("owner") == etag("owner-2") {
				t.Error("ETags do not depend on the token")
			}
			t.wantStatus(other.get("owner", "/gitignore/templates", "If-None-Match: "+etag("owner")), 304)
			t.wantStatus(other.get("owner-2", "/gitignore/templates", "If-None-Match: "+etag("owner")), 200)
		})
	}
}

func TestLinksByNameUsesNames(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.setFaults(Faults{LinksByName: true})
		link := t.get("owner", "/repos/acme/widgets/subscribers?per_page=60").Header().Get("Link")
		if want := `<http://api.test/repos/acme/widgets/subscribers?per_page=60&page=2>; rel="next"`; !strings.HasPrefix(link, want) {
			t.Errorf("got Link %s, want prefix %s", link, want)
		}
	})
}
