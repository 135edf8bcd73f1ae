package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// templates is an upstream with one cacheable response that has a validator.
func templates(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Etag", `W/"one"`)
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("If-None-Match") == `W/"one"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = fmt.Fprint(w, `["Go"]`)
}

func TestMissThenHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templates)
		miss := w.get("/gitignore/templates")
		time.Sleep(90 * time.Second)
		hit := w.get("/gitignore/templates")

		w.want("miss", miss.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=86400")
		w.want("hit", hit.Header.Get("Cache-Status"), "weir; hit; ttl=86310")
		w.want("age", hit.Header.Get("Age"), "90")
		w.want("body", hit.body, `["Go"]`)
		w.want("requests upstream", w.upstreamSaw(), 1)
		for _, name := range []string{"Limit", "Remaining", "Used", "Reset", "Resource"} {
			for _, r := range []got{miss, hit} {
				if len(r.Header.Values("X-RateLimit-"+name)) != 1 {
					t.Errorf("x-ratelimit-%s: %q", name, r.Header.Values("X-RateLimit-"+name))
				}
			}
		}
	})
}

func TestReferenceDataIsSharedByAllTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templates)
		for _, token := range []string{"Bearer a", "Bearer b", "token c"} {
			w.want("body", w.get("/gitignore/templates", "Authorization: "+token).body, `["Go"]`)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func TestPrivateResponsesAreKeptPerCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60, s-maxage=60")
			_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
		})
		for range 2 {
			for _, token := range []string{"Bearer a", "Bearer b"} {
				w.want("body", w.get("/repos/acme/secret/subscribers", "Authorization: "+token).body, token)
			}
			w.want("anonymous", w.get("/repos/acme/secret/subscribers").body, "")
		}
		// Each token has a separate entry. The anonymous response is private, so Weir does not store this response.
		w.want("requests upstream", w.upstreamSaw(), 4)
	})
}

func TestStaleEntryIsRevalidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templates)
		w.get("/gitignore/templates")
		time.Sleep(25 * time.Hour)
		second := w.get("/gitignore/templates")
		w.want("status", second.StatusCode, 200)
		w.want("body", second.body, `["Go"]`)
		w.want("cache", second.Header.Get("Cache-Status"), "weir; fwd=stale; fwd-status=304; stored; ttl=86400")
		w.want("Cache-Status after the revalidation", w.get("/gitignore/templates").Header.Get("Cache-Status"), "weir; hit; ttl=86400")
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

func TestIfNoneMatchOfClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templates)
		cold := w.get("/gitignore/templates", `If-None-Match: W/"one"`)
		w.want("miss, matching: status", cold.StatusCode, 304)
		full := w.get("/gitignore/templates")
		w.want("without validator: status", full.StatusCode, 200)
		w.want("without validator: body", full.body, `["Go"]`)
		fresh := w.get("/gitignore/templates", `If-None-Match: "other", "one"`)
		w.want("fresh, matching weakly: status", fresh.StatusCode, 304)
		w.want("fresh, matching: body", fresh.body, "")
		if fresh.Header.Get("Content-Length") != "" || fresh.Header.Get("Content-Type") != "" {
			t.Errorf("the 304 describes a body: %v", fresh.Header)
		}
		w.want("fresh, other tag", w.get("/gitignore/templates", `If-None-Match: "on"`).StatusCode, 200)
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

func TestCacheControlOfClients(t *testing.T) {
	for _, c := range []struct {
		name, control, want string
		upstream            int
	}{
		{"no-cache", "no-cache", "weir; fwd=request; fwd-status=304; stored; ttl=86400", 2},
		{"no-store", "no-store", "weir; fwd=request; fwd-status=200", 2},
		{"max-age below the age", "max-age=5", "weir; fwd=request; fwd-status=304; stored; ttl=86400", 2},
		{"max-age above the age", "max-age=60", "weir; hit; ttl=86390", 1},
		{"only-if-cached", "only-if-cached", "weir; hit; ttl=86390", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, templates)
				w.get("/gitignore/templates")
				time.Sleep(10 * time.Second)
				r := w.get("/gitignore/templates", "Cache-Control: "+c.control)
				w.want("body", r.body, `["Go"]`)
				w.want("Cache-Status", r.Header.Get("Cache-Status"), c.want)
				w.want("requests upstream", w.upstreamSaw(), c.upstream)
			})
		})
	}
}

func TestOnlyIfCachedFailsOnAMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templates)
		r := w.get("/gitignore/templates", "Cache-Control: only-if-cached")
		w.want("status", r.StatusCode, http.StatusGatewayTimeout)
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}

// A request with only-if-cached is never forwarded (RFC 9111 section 5.2.1.7).
func TestOnlyIfCachedIsNeverForwarded(t *testing.T) {
	for _, field := range []string{"Accept: */*", "Range: bytes=0-1", `If-Match: "one"`} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, parts)
			r := w.get("/gitignore/templates", "Cache-Control: only-if-cached", field)
			w.want("status of "+field, r.StatusCode, http.StatusGatewayTimeout)
			w.want("requests upstream", w.upstreamSaw(), 0)
		})
	}
}

func TestConditionsForTheUpstreamBypassTheCache(t *testing.T) {
	for _, field := range []string{`If-Match: "other"`, "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT", "Range: lines=1-2"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, parts)
			w.get("/gitignore/templates", field)
			w.want("not stored with "+field, w.get("/gitignore/templates").body, "whole")
			w.want("Cache-Status", w.get("/gitignore/templates", field).Header.Get("Cache-Status")[:16], "weir; fwd=bypass")
			w.want("requests upstream", w.upstreamSaw(), 3)
		})
	}
}

// parts is an upstream whose partial responses have the first two bytes.
func parts(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Etag", `"one"`)
	w.Header().Set("Last-Modified", beforeStart)
	if r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", "bytes 0-1/5")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = fmt.Fprint(w, "wh")
		return
	}
	_, _ = fmt.Fprint(w, "whole")
}

// A partial response is not stored (RFC 9111 section 3.3).
func TestPartialResponseIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, parts)
		part := w.get("/gitignore/templates", "Range: bytes=0-1")
		w.want("status on a miss", part.StatusCode, http.StatusPartialContent)
		w.want("Cache-Status", part.Header.Get("Cache-Status"), "weir; fwd=bypass; fwd-status=206")
		w.want("complete body", w.get("/gitignore/templates").body, "whole")
	})
}

// A stored response answers range requests (RFC 9110 sections 13.1.5 and 14, RFC 9111 section 3.3).
func TestRangesOfStoredResponses(t *testing.T) {
	for _, c := range []struct {
		fields []string
		status int
		body   string
		part   string
	}{
		{[]string{"Range: bytes=0-1"}, 206, "wh", "bytes 0-1/5"},
		{[]string{"Range: bytes=3-"}, 206, "le", "bytes 3-4/5"},
		{[]string{"Range: bytes=-2"}, 206, "le", "bytes 3-4/5"},
		{[]string{"Range: bytes=9-"}, 416, "invalid range: failed to overlap\n", "bytes */5"},
		{[]string{"Range: bytes=0-1", `If-Range: "one"`}, 206, "wh", "bytes 0-1/5"},
		{[]string{"Range: bytes=0-1", `If-Range: "two"`}, 200, "whole", ""},
		{[]string{"Range: bytes=0-1", `If-Range: W/"one"`}, 200, "whole", ""},
		{[]string{"Range: bytes=0-1", "If-Range: " + beforeStart}, 206, "wh", "bytes 0-1/5"},
		{[]string{"Range: bytes=0-1", `If-None-Match: "one"`}, 304, "", ""},
		{[]string{`If-Range: "two"`}, 200, "whole", ""},
	} {
		t.Run(strings.Join(c.fields, ", "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, parts)
				w.get("/gitignore/templates")
				time.Sleep(5 * time.Second)
				got := w.get("/gitignore/templates", c.fields...)
				w.want("status", got.StatusCode, c.status)
				w.want("body", got.body, c.body)
				w.want("part", got.Header.Get("Content-Range"), c.part)
				w.want("age", got.Header.Get("Age"), "5")
				w.want("requests upstream", w.upstreamSaw(), 1)
			})
		})
	}
}

func TestStoredGETAnswersHEAD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, templates)
		w.get("/gitignore/templates")
		r := w.do(http.MethodHead, "/gitignore/templates", nil)
		w.want("status", r.StatusCode, 200)
		w.want("length", r.ContentLength, int64(6))
		w.want("body", r.body, "")
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func TestRepresentationsAreKeptApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, strings.Contains(r.Header.Get("Accept"), "raw"))
		})
		for range 2 {
			w.want("plain", w.get("/gitignore/templates/Go").body, "false")
			w.want("vendor type", w.get("/gitignore/templates/Go", "Accept: application/vnd.service+json").body, "false")
			w.want("raw", w.get("/gitignore/templates/Go", "Accept: application/vnd.service.raw+json").body, "true")
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
	synctest.Test(t, func(t *testing.T) { // a field of the dialect selects the representation
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, r.Header.Get("X-GitHub-Next-Global-ID"))
		}, github)
		for range 2 {
			for _, value := range []string{"0", "1"} {
				w.want("identifiers", w.get("/gitignore/templates/Go", "X-GitHub-Next-Global-ID: "+value).body, value)
			}
		}
	})
}

func TestWriteInvalidatesAffectedResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subscribed := false
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			subscribed = subscribed || r.Method == http.MethodPut
			w.Header().Set("Cache-Control", "private, max-age=60")
			_, _ = fmt.Fprint(w, subscribed)
		})
		body := func(path string) string { return w.get(path, "Authorization: Bearer a").body }
		const watchers = "/repos/acme/widgets/subscribers"
		for _, path := range []string{"/repos/Acme/Widgets/subscription", watchers, "/repositories/7/subscribers", "/repos/acme/other/subscribers"} {
			w.want(path, body(path), "false")
		}
		w.want("write", w.do(http.MethodPut, "/repos/acme/widgets/subscription", strings.NewReader("{}"), "Authorization: Bearer a").StatusCode, 200)
		w.want("target of the write", body("/repos/acme/widgets/subscription"), "true")
		w.want("operation named in the catalogue", body(watchers), "true")
		w.want("the same repository by ID", body("/repositories/7/subscribers"), "true")
		w.want("another repository", body("/repos/acme/other/subscribers"), "false")
	})
}

// The upstream may have applied a write whose response was lost.
func TestWriteWithoutAResponseInvalidatesAffectedResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subscribed := false
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				subscribed = true
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Cache-Control", "private, max-age=60")
			_, _ = fmt.Fprint(w, subscribed)
		})
		const subscription = "/repos/acme/widgets/subscription"
		w.want("before", w.get(subscription, "Authorization: Bearer a").body, "false")
		w.want("write", w.do(http.MethodPut, subscription, strings.NewReader("{}"), "Authorization: Bearer a").StatusCode, 502)
		w.want("after", w.get(subscription, "Authorization: Bearer a").body, "true")
	})
}

func TestResponseFetchedDuringAWriteIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			if r.Method == http.MethodGet && r.Header.Get("User-Agent") == "slow" {
				<-release
			}
			_, _ = fmt.Fprint(w, r.Header.Get("User-Agent"))
		})
		slow := make(chan got)
		go func() {
			slow <- w.get("/repos/acme/widgets/subscription", "Authorization: Bearer a", "User-Agent: slow")
		}()
		synctest.Wait()
		w.do(http.MethodPut, "/repos/acme/widgets/subscription", nil, "Authorization: Bearer a")
		close(release)
		<-slow
		w.want("after the write", w.get("/repos/acme/widgets/subscription", "Authorization: Bearer a", "User-Agent: new").body, "new")
	})
}

func TestTruncatedBodyIsNotStored(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int // 0 if the response breaks off after its header
		write  func(http.ResponseWriter)
	}{
		{"small with a length", http.StatusBadGateway, func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
		}},
		{"with a length", 0, func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100000")
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
		}},
		{"chunked", 0, func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broken := true
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					if broken {
						c.write(w)
						panic(http.ErrAbortHandler)
					}
					_, _ = fmt.Fprint(w, "whole")
				})
				first := w.try(http.MethodGet, "/gitignore/templates", nil)
				switch {
				case c.status != 0:
					w.want("status", first.StatusCode, c.status)
				case first.err == nil:
					t.Errorf("the client got a complete response: %v %q", first.Response, first.body)
				}
				r := w.gateway.Recent()[0]
				w.want("record", fmt.Sprint(r.Status, r.Error != "", strings.Contains(r.Cache, "stored")), "502 true false")
				broken = false
				second := w.get("/gitignore/templates")
				w.want("body", second.body, "whole")
				w.want("requests upstream", w.upstreamSaw(), 2)
			})
		})
	}
}

func TestLargeBodyIsForwardedButNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chunk := strings.Repeat("x", 1<<20)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			for range maxEntry>>20 + 1 {
				_, _ = fmt.Fprint(w, chunk)
			}
		})
		for range 2 {
			w.want("size", len(w.get("/gitignore/templates").body), maxEntry+1<<20)
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}
