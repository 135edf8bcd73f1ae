package proxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

func TestNumbersOutsideTheirRangeAreNamedAndBlockNoAccount(t *testing.T) {
	date := func(offset time.Duration) string { return time.Now().Add(offset).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		name, kind string
		answer     func() answer
		named      string
		wait       int // Retry-After of the next request; 0 if the request is granted
	}{
		{"use", reads, func() answer { return answer{200, []string{"X-RateLimit-Used: 100000000000000"}, "{}"} }, "x-ratelimit-used", 0},
		{"limit", reads, func() answer { return answer{200, []string{"X-RateLimit-Limit: 9223372036854775808"}, "{}"} }, "x-ratelimit-limit", 0},
		{"reset", reads, func() answer {
			return answer{200, []string{"X-RateLimit-Reset: 9000000000", "X-RateLimit-Remaining: 0"}, "{}"}
		}, "x-ratelimit-reset", 0},
		{"date", reads, func() answer { return answer{200, []string{"Date: " + date(5*time.Hour)}, "{}"} }, "x-ratelimit-reset", 0},
		{"date by days", reads, func() answer {
			at := time.Now().Add(48 * time.Hour)
			return answer{200, []string{"Date: " + at.UTC().Format(http.TimeFormat), "X-RateLimit-Reset: " + strconv.FormatInt(at.Add(time.Hour).Unix(), 10)}, "{}"}
		}, "date", 0},
		{"use against the remaining number", reads, func() answer { return answer{200, []string{"X-RateLimit-Used: 1000000"}, "{}"} }, "x-ratelimit-used+remaining", 0},
		{"cost", queries, func() answer { return answer{200, nil, `{"data":{"rateLimit":{"cost":1000000000000}}}`} }, "rateLimit.cost", 0},
		{"retry-after", reads, func() answer { return answer{429, []string{"Retry-After: 9000000000"}, problem(secondaryText, "")} }, "retry-after", 3601},
		{"retry-after that overflows", reads, func() answer { return answer{429, []string{"Retry-After: 9223372037"}, problem(secondaryText, "")} }, "retry-after", 3601},
		{"retry-after as a date", reads, func() answer {
			return answer{429, []string{"Date: " + date(-20*time.Second), "Retry-After: " + date(10*time.Second)}, problem(secondaryText, "")}
		}, "", 31},
		{"retry-after as a late date", reads, func() answer {
			return answer{429, []string{"Retry-After: " + date(1e6*time.Hour)}, problem(secondaryText, "")}
		}, "retry-after", 3601},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := &moody{}
			setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
				w.send(c.kind, 1)
				up.next = []answer{c.answer()}
				if got, err := strconv.Atoi(w.send(c.kind, 2).Header.Get("Retry-After")); err == nil {
					w.want("Retry-After of the response within its range", got >= 0 && got <= 3600, true)
				}
				w.want("number in the record", w.last().OutsideRange, c.named)
				wait, _ := strconv.Atoi(w.send(c.kind, 3).Header.Get("Retry-After"))
				w.want("Retry-After", wait, c.wait)
			})
		})
	}
}

func TestResponseWithoutAValidStatusBlocksNoAccount(t *testing.T) {
	for _, status := range []int{-1, 0, 99, 100, 101, 199, 1000} {
		for _, size := range []int{10, 100_000} {
			for _, method := range []string{"GET", "PATCH"} {
				invalid := func(c *Config) {
					inner := c.Transport
					c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
						resp, err := inner.RoundTrip(r)
						if err == nil {
							resp.StatusCode = status
						}
						return resp, err
					})
				}
				setup(replies(strings.Repeat("x", size)), invalid).sub(t, fmt.Sprintf("%d/%d/%s", status, size, method), func(w *world) {
					w.wantReply("", w.do(method, "/repos/a/b", strings.NewReader("{}"), owner), http.StatusBadGateway)
					w.want("number in the record", w.last().OutsideRange, "status")
					w.want("spent", w.last().Spent, 1)
					time.Sleep(11 * time.Second) // an unconfirmed permit is held for a while
					w.want("permits in flight", w.inFlight(), 0)
				})
			}
		}
	}
}

// panickingCredential is a held credential that cannot be set.
type panickingCredential struct{ lateCredential }

func (panickingCredential) Authorize(http.Header, policy.CredentialUse) (caller.SentCredential, error) {
	panic("planted")
}

// A panic ends the permit of a request, wherever it happens. The request counts if it may have been sent.
func TestPanicEndsThePermit(t *testing.T) {
	brokenBody := changingResponses(func(_ int32, resp *http.Response) { resp.Body = panicking{resp.Body} })
	text := strings.Repeat(" ", 2000)
	inLookUp := func(plant option) option {
		return func(c *Config) {
			withCatalogue(c)
			scoped(agentScope)(c)
			plant(c)
		}
	}
	for _, c := range []struct {
		name, path string
		upstream   http.HandlerFunc
		plant      option
		used       int
	}{
		{"while the credential is set", "/repos/a/b", replies(""), func(c *Config) {
			c.Identify = func(r *http.Request) (*caller.Identity, error) {
				i, err := identifyByToken(r)
				i.Passed, i.Credential = false, panickingCredential{}
				return i, err
			}
		}, 0},
		{"while the request is sent", "/repos/a/b", replies(""), changingResponses(func(int32, *http.Response) { panic("planted") }), 1},
		{"while a limit error is recognized", "/repos/a/b", inOrder(responds(http.StatusForbidden, "Content-Length: 9")), brokenBody, 1},
		{"while an identity is learned", "/user", replies(`{"id":1` + text + "}"), brokenBody, 1},
		{"while a small body is read", "/repos/a/b", replies(text), brokenBody, 1},
		{"while a large body is stored", "/repos/a/b", replies(text+strings.Repeat(text, 20), fresh), brokenBody, 1},
		{"while the name of a number is requested", "/repositories/7/labels", replies(""), inLookUp(changingResponses(func(int32, *http.Response) { panic("planted") })), 1},
		{"while the name of a number is read", "/repositories/7/labels", replies(text), inLookUp(brokenBody), 1},
		{"while the response is written", "/repos/a/b", replies(strings.Repeat(text, 50)), nil, 1},
	} {
		plant := c.plant
		if plant == nil {
			plant = func(*Config) {}
		}
		setup(c.upstream, plant).sub(t, c.name, func(w *world) {
			func() {
				defer func() { _ = recover() }()
				w.gateway.ServeHTTP(panicWriter{httptest.NewRecorder()}, newGet(c.path, bearer("a")))
			}()
			time.Sleep(11 * time.Second)
			w.want("permits in flight", w.inFlight(), 0)
			used := 0
			for _, a := range w.accounts(10) {
				for _, b := range a.Budgets {
					if b.Resource == policy.Core {
						used += b.Used + b.Held
					}
				}
			}
			w.want("used", used, c.used)
		})
	}
}

// panicWriter panics at the beginning of a response.
type panicWriter struct{ http.ResponseWriter }

func (panicWriter) WriteHeader(int) { panic("planted") }

func TestOneWrongDateHidesNoExhaustedWindow(t *testing.T) {
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
		w.send(reads, 1)
		up.next = []answer{{200, []string{"Date: " + time.Now().Add(time.Hour-time.Minute).UTC().Format(http.TimeFormat)}, "{}"}}
		w.send(reads, 2)
		time.Sleep(2 * time.Minute)
		up.used["core"] = 4999
		w.send(reads, 3)
		before := w.upstreamSaw()
		for n := range 6 {
			w.send(reads, 4+n)
		}
		w.want("requests upstream", w.upstreamSaw(), before)
	})
}

func TestTheDocumentationListsTheRangesOfNumbers(t *testing.T) {
	text, err := os.ReadFile("../docs/internals/upstream.md")
	noError(t, err)
	for _, n := range policy.Numbers() {
		rule := "ignored"
		if n.Clamp {
			rule = "clamped"
		}
		row := fmt.Sprintf("| `%s` | %d | %d | %s |", n.Name, n.Least, n.Most, rule)
		failIf(t, !strings.Contains(string(text), row), "docs/internals/upstream.md: the row %s is missing", row)
	}
}
