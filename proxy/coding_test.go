package proxy

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weirgate/weir/internal/contentcoding"
)

// longList is a JSON body that is worth a content coding.
var longList = "[" + strings.Repeat(`{"login":"octocat","type":"User"},`, 200) + "null]"

// listing returns an upstream with one response. Conditions are compared as RFC 9110 section 13.1.2 requires. Fields
// have the form "Name: value".
func listing(body string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/json; charset=utf-8")
		h.Set("Cache-Control", "max-age=60")
		h.Set("Etag", `"v1"`)
		h.Set("Accept-Ranges", "bytes")
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			h.Set(name, value)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(body))
	}
}

// decoded returns the body of a response without its content coding.
func (w *world) decoded(r got) string {
	w.Helper()
	var plain io.Reader = strings.NewReader(r.body)
	var err error
	switch r.Header.Get("Content-Encoding") {
	case "gzip":
		plain, err = gzip.NewReader(plain)
	case "zstd":
		plain, err = zstd.NewReader(plain, zstd.WithDecoderConcurrency(1))
	}
	if err != nil {
		w.Fatal(err)
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// Every client gets the coding that it accepts, from the upstream and from the cache. HEAD has the fields of GET.
func TestClientsGetTheContentCodingThatTheyAccept(t *testing.T) {
	for _, c := range []struct{ accept, want string }{
		{"", ""},
		{"identity", ""},
		{"br", ""},
		{"gzip;q=0, zstd;q=0", ""},
		{"gzip", "gzip"},
		{"zstd", "zstd"},
		{"gzip, deflate, br, zstd", "zstd"},
		{"gzip;q=0.9, zstd;q=0.1", "gzip"},
		{"gzip, identity;q=0", "gzip"},
	} {
		for _, path := range []string{"/gitignore/templates", "/repos/acme/widgets/subscribers", "/made-up"} {
			setup(listing(longList)).sub(t, fmt.Sprintf("%q %s", c.accept, path), func(w *world) {
				fields := []string{"Authorization: Bearer a"}
				if c.accept != "" {
					fields = append(fields, "Accept-Encoding: "+c.accept)
				}
				check := func(step string, r got, cache string, length bool) {
					w.want(step+": coding", r.Header.Get("Content-Encoding"), c.want)
					w.want(step+": Vary", strings.Join(r.Header["Vary"], "|"), "Accept-Encoding")
					etag := `"v1"`
					if c.want != "" {
						etag = `W/"v1"`
						w.want(step+": Accept-Ranges", r.Header.Get("Accept-Ranges"), "")
					}
					w.want(step+": ETag", r.Header.Get("Etag"), etag)
					if status := r.Header.Get("Cache-Status"); !strings.HasPrefix(status, "weir; "+cache) {
						w.Errorf("%s: Cache-Status %q, want %q", step, status, cache)
					}
					if r.Request.Method == http.MethodGet {
						w.want(step+": decoded body", w.decoded(r), longList)
						w.want(step+": smaller", len(r.body) < len(longList)/10, c.want != "")
						if n := r.Header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(r.body)) {
							w.Errorf("%s: Content-Length %s, but %d bytes", step, n, len(r.body))
						}
					}
					w.want(step+": has Content-Length", r.Header.Get("Content-Length") != "", length || c.want == "")
				}
				check("HEAD miss", w.do(http.MethodHead, path, nil, fields...), "fwd=uri-miss", false)
				check("miss", w.get(path, fields...), "fwd=uri-miss", false)
				time.Sleep(time.Second)
				hit := w.get(path, fields...)
				check("hit", hit, "hit", true)
				head := w.do(http.MethodHead, path, nil, fields...)
				check("HEAD hit", head, "hit", true)
				w.want("Content-Length of HEAD", head.Header.Get("Content-Length"), hit.Header.Get("Content-Length"))
				check("revalidated", w.get(path, append(fields, "Cache-Control: no-cache")...), "fwd=request; fwd-status=304; stored", true)
				w.want("requests upstream", w.upstreamSaw(), 3)
				for _, r := range w.seen.all() {
					w.want("Accept-Encoding upstream", r.Header.Get("Accept-Encoding"), "identity")
				}
			})
		}
	}
}

// The coding of one client does not reach a client that does not accept it.
func TestClientsOfOneEntryGetDifferentCodings(t *testing.T) {
	setup(listing(longList)).run(t, func(w *world) {
		for range 2 {
			for _, accept := range []string{"gzip", "zstd", "identity", "br", "zstd;q=0.1, gzip"} {
				want := map[string]string{"gzip": "gzip", "zstd": "zstd", "zstd;q=0.1, gzip": "gzip"}[accept]
				r := w.get("/gitignore/templates", "Accept-Encoding: "+accept)
				w.want("coding for "+accept, r.Header.Get("Content-Encoding"), want)
				w.want("body for "+accept, w.decoded(r), longList)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func TestResponsesThatAreNotEncoded(t *testing.T) {
	for _, c := range []struct {
		name     string
		body     string
		response string // a field of the response
		request  string // a field of the request
		coding   string
		status   int
	}{
		{name: "small body", body: `["Go"]`},
		{name: "compressed type", response: "Content-Type: image/png"},
		{name: "no-transform of the response", response: "Cache-Control: max-age=60, no-transform"},
		{name: "no-transform of the request", request: "Cache-Control: no-transform"},
		{name: "coding of the upstream", response: "Content-Encoding: made-up", coding: "made-up"},
		{name: "digest", response: "Content-Digest: sha-256=:AAAA:"},
		{name: "range", request: "Range: bytes=2-9", status: http.StatusPartialContent},
		{name: "unsatisfiable range", request: "Range: bytes=99999-", status: http.StatusRequestedRangeNotSatisfiable},
	} {
		bubble(t, c.name, func(t *testing.T) {
			body, status := c.body, c.status
			if body == "" {
				body = longList
			}
			if status == 0 {
				status = http.StatusOK
			}
			w := newWorld(t, listing(body, c.response))
			fields := []string{"Accept-Encoding: gzip"}
			if c.request != "" {
				fields = append(fields, c.request)
			}
			for _, step := range []string{"miss", "hit"} {
				r := w.get("/made-up", fields...)
				w.want(step+": status", r.StatusCode, status)
				w.want(step+": coding", r.Header.Get("Content-Encoding"), c.coding)
				if status != http.StatusRequestedRangeNotSatisfiable {
					w.want(step+": ETag", r.Header.Get("Etag"), `"v1"`)
				}
				switch status {
				case http.StatusOK:
					w.want(step+": body", r.body, body)
				case http.StatusPartialContent:
					w.want(step+": body", r.body, body[2:10])
					w.want(step+": Vary", r.Header.Get("Vary"), "Accept-Encoding")
				}
				if c.request != "" && step == "miss" {
					w.get("/made-up") // stores the response
				}
			}
		})
	}
}

// A range is a part of the identity form, so the ETag of a coded response selects the whole response. If-Match compares the
// versions of the resource, which both forms share.
func TestETagOfCodedResponseInConditions(t *testing.T) {
	setup(listing(longList)).run(t, func(w *world) {
		coded := w.get("/made-up", "Accept-Encoding: gzip").Header.Get("Etag")
		for _, cached := range []bool{true, false} {
			w.want("If-Range with the weak ETag", w.get("/made-up", "Accept-Encoding: gzip", "Range: bytes=2-9", "If-Range: "+coded).StatusCode, 200)
			w.want("If-Range with the strong ETag", w.get("/made-up", "Accept-Encoding: gzip", "Range: bytes=2-9", `If-Range: "v1"`).StatusCode, 206)
			w.want("If-Match with the weak ETag", w.get("/made-up", "Accept-Encoding: gzip", "If-Match: "+coded).StatusCode, 200)
			if cached {
				time.Sleep(2 * time.Minute)
			}
		}
	})
}

func TestETagOfCodedResponseIsRevalidated(t *testing.T) {
	const weak, strong = `W/"v1"`, `"v1"`
	for _, c := range []struct {
		name, condition string
		status          int
		etag            string // of the response
	}{
		{"ETag of the coded form", "If-None-Match: " + weak, 304, weak},
		{"ETag of the identity form", "If-None-Match: " + strong, 304, strong},
		{"list", `If-None-Match: "v0", W/"v1"`, 304, weak},
		{"any", "If-None-Match: *", 304, strong},
		{"other ETag", `If-None-Match: W/"v0"`, 200, weak},
		{"none", "X-Condition: none", 200, weak},
	} {
		setup(listing(longList)).sub(t, c.name, func(w *world) {
			ask := func(step string) {
				r := w.get("/made-up", "Accept-Encoding: gzip", c.condition)
				w.want(step+": status", r.StatusCode, c.status)
				w.want(step+": ETag", r.Header.Get("Etag"), c.etag)
				w.want(step+": Vary", r.Header.Get("Vary"), "Accept-Encoding")
				if c.status == 200 {
					w.want(step+": coding", r.Header.Get("Content-Encoding"), "gzip")
					w.want(step+": body", w.decoded(r), longList)
				} else {
					w.want(step+": body", r.body, "")
					w.want(step+": coding", r.Header.Get("Content-Encoding"), "")
					w.want(step+": Content-Length", r.Header.Get("Content-Length"), "")
				}
			}
			ask("miss")
			w.get("/made-up", "Accept-Encoding: gzip")
			ask("hit")
			time.Sleep(2 * time.Minute)
			ask("stale")
		})
	}
}

// In the github dialect a client of another token sends back the weak form of an ETag that Weir computed.
func TestETagOfCodedResponseProvesAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := func(token string) string {
			if token == "Bearer other" {
				return strings.ToUpper(longList)
			}
			return longList
		}
		upstream := digesting(text, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			upstream(w, r)
		}, github)
		get := func(token string, fields ...string) got {
			return w.get(sbom, append(fields, "Authorization: "+token, "Accept-Encoding: gzip")...)
		}
		for _, token := range []string{"Bearer a", "Bearer b", "Bearer other"} {
			first := get(token)
			w.want(token+": status", first.StatusCode, 200)
			w.want(token+": coding", first.Header.Get("Content-Encoding"), "gzip")
			w.want(token+": body", w.decoded(first), text(token))
			w.want(token+": proof", strings.Contains(first.Header.Get("Cache-Status"), "fwd-status=304"), token == "Bearer b")
			w.want(token+": hit", get(token, "If-None-Match: "+first.Header.Get("Etag")).StatusCode, 304)
			time.Sleep(2 * time.Minute)
			w.want(token+": stale", get(token, "If-None-Match: "+first.Header.Get("Etag")).StatusCode, 304)
		}
	})
}

// coding returns an upstream that encodes the response itself.
func coding(control string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", control)
		h.Set("Etag", `"identity"`)
		h.Set("Vary", "Accept-Encoding")
		body := []byte(longList)
		if c := contentcoding.Select(r.Header["Accept-Encoding"]); c != nil {
			h.Set("Content-Encoding", c.Name)
			h.Set("Etag", `"`+c.Name+`"`)
			body = c.Encode(body)
		}
		_, _ = w.Write(body)
	}
}

// Responses that are not stored have the coding, ETag and length of the upstream.
func TestUncacheableResponsesPassInTheCodingOfTheUpstream(t *testing.T) {
	for _, c := range []struct{ name, method, path, field string }{
		{"method", http.MethodPost, "/made-up", "X-A: b"},
		{"class never", http.MethodGet, "/rate_limit", "Cache-Control: no-cache"},
		{"no-store of the request", http.MethodGet, "/made-up", "Cache-Control: no-store"},
		{"If-Match", http.MethodGet, "/made-up", `If-Match: "gzip"`},
		{"key known to be uncacheable", http.MethodGet, "/repos/acme/widgets/subscribers", "X-A: b"},
		{"unknown route known to be uncacheable", http.MethodGet, "/made-up", "X-A: b"},
		{"key known to be uncacheable, with no-cache", http.MethodGet, "/made-up", "Cache-Control: no-cache"},
	} {
		setup(coding("no-store")).sub(t, c.name, func(w *world) {
			if strings.Contains(c.name, "known") {
				w.get(c.path, "Accept-Encoding: gzip")
			}
			r := w.do(c.method, c.path, nil, "Accept-Encoding: gzip;q=0.9", c.field)
			w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			w.want("ETag", r.Header.Get("Etag"), `"gzip"`)
			w.want("Vary", strings.Join(r.Header["Vary"], "|"), "Accept-Encoding")
			w.want("Content-Length", r.Header.Get("Content-Length"), strconv.Itoa(len(r.body)))
			w.want("body", w.decoded(r), longList)
			sent := w.seen.all()
			w.want("Accept-Encoding upstream", sent[len(sent)-1].Header.Get("Accept-Encoding"), "gzip;q=0.9")
		})
	}
}

func TestResponsesOfUncacheableOperationPassInTheCodingOfTheUpstream(t *testing.T) {
	setup(coding("no-store")).run(t, func(w *world) {
		etags := map[string]int{}
		for i := range 40 {
			r := w.get(fmt.Sprintf("/repos/acme/r%d/subscribers", i), "Accept-Encoding: gzip")
			w.want("body", w.decoded(r), longList)
			etags[r.Header.Get("Etag")]++
		}
		if etags[`"gzip"`] < 20 {
			w.Errorf("ETags %v, want most responses in the coding of the upstream", etags)
		}
	})
}

// A response that became cacheable is not stored in the coding of one client.
func TestCodedResponseOfTheUpstreamIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		control := "no-store"
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) { coding(control)(w, r) })
		w.get("/made-up", "Accept-Encoding: gzip")
		control = "max-age=60"
		for i, want := range []string{"weir; fwd=uri-miss; fwd-status=200", "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60", "weir; hit; ttl=60"} {
			r := w.get("/made-up", "Accept-Encoding: gzip")
			w.want("Cache-Status", r.Header.Get("Cache-Status"), want)
			w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			w.want("body", w.decoded(r), longList)
			w.want("ETag of the upstream's coding", r.Header.Get("Etag") == `"gzip"`, i == 0)
		}
		r := w.get("/made-up")
		w.want("coding without Accept-Encoding", r.Header.Get("Content-Encoding"), "")
		w.want("body without Accept-Encoding", r.body, longList)
	})
}

// A 304 confirms a stored response, which has the identity form.
func TestConditionsOfWeirAskForTheIdentityForm(t *testing.T) {
	for _, status := range []string{"304", "200"} {
		bubble(t, status, func(t *testing.T) {
			body, control := longList, "no-store"
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("If-None-Match") != "" && status == "200" {
					r.Header.Del("If-None-Match")
					body = strings.ToUpper(longList)
				}
				listing(body, "Cache-Control: "+control)(w, r)
			})
			w.get(sbom, "Authorization: Bearer a", "Accept-Encoding: gzip") // marks the key of this caller as uncacheable
			control = "max-age=60"
			w.get(sbom, "Authorization: Bearer b") // stores the response for another caller
			r := w.get(sbom, "Authorization: Bearer a", "Accept-Encoding: gzip", "Cache-Control: no-cache")
			w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			w.want("body", w.decoded(r), body)
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status="+status+"; stored; ttl=60")
			last := w.seen.all()[2].Header
			w.want("If-None-Match", last.Get("If-None-Match"), `"v1"`)
			w.want("Accept-Encoding", last.Get("Accept-Encoding"), "identity")
		})
	}
}

// A coded stream reaches the client as soon as the upstream has sent it.
func TestCodedStreamIsNotDelayed(t *testing.T) {
	for _, accept := range []string{"gzip", "zstd"} {
		bubble(t, accept, func(t *testing.T) {
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Cache-Control", "max-age=60")
				_, _ = io.WriteString(w, longList)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Second)
				_, _ = io.WriteString(w, "end")
			})
			start := time.Now()
			r, err := http.NewRequest(http.MethodGet, "http://gateway.test/made-up", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept-Encoding", accept)
			resp, err := w.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			w.want("coding", resp.Header.Get("Content-Encoding"), accept)
			var received []byte
			buffer := make([]byte, 1<<10)
			for err == nil {
				var n int
				n, err = resp.Body.Read(buffer)
				received = append(received, buffer[:n]...)
				if string(contentcoding.Decode(accept, received, int64(len(longList)))) == longList {
					break
				}
			}
			w.want("time until the first part is readable", time.Since(start), 0*time.Second)
			rest, err := io.ReadAll(resp.Body)
			w.want("error", err, nil)
			received = append(received, rest...)
			w.want("body", string(contentcoding.Decode(accept, received, 1<<20)), longList+"end")
		})
	}
}

func TestBrokenUpstreamBodyIsNoCompleteCodedBody(t *testing.T) {
	for _, length := range []int{0, 2 * len(longList), 100_000} { // chunked, small, large
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Cache-Control", "max-age=60")
				if length > 0 {
					w.Header().Set("Content-Length", strconv.Itoa(length))
				}
				_, _ = io.WriteString(w, longList)
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			if r := w.try(http.MethodGet, "/made-up", nil, "Accept-Encoding: gzip"); r.err == nil && r.StatusCode == 200 {
				t.Errorf("length %d: the client got a complete response", length)
			}
		})
	}
}

// The client of net/http asks for gzip, and decodes the response by itself.
func TestTransparentDecompressionOfNetHTTP(t *testing.T) {
	setup(listing(longList)).run(t, func(w *world) {
		pipes, _ := w.client.Transport.(*http.Transport)
		transport := pipes.Clone()
		transport.DisableCompression = false
		defer transport.CloseIdleConnections()
		w.client.Transport = transport
		for range 2 {
			r := w.get("/made-up")
			w.want("decoded by net/http", r.Uncompressed, true)
			w.want("body", r.body, longList)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Clients accept codings, so the upstream also encodes its limit errors.
func TestCodedLimitErrorIsRecognized(t *testing.T) {
	for _, accept := range []string{"gzip", "zstd"} {
		bubble(t, accept, func(t *testing.T) {
			// The repetition removes the text of the message from the encoded body.
			text := `{"hints":["` + strings.Repeat("exceed a second ", 200) + `"],"message":"You have exceeded a secondary rate limit."}`
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", accept)
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write(contentcoding.Select(r.Header["Accept-Encoding"]).Encode([]byte(text)))
			})
			w.do(http.MethodPost, "/made-up", nil, "Accept-Encoding: "+accept, "Authorization: Bearer a")
			r := w.do(http.MethodPost, "/made-up", nil, "Accept-Encoding: "+accept, "Authorization: Bearer a", "Prefer: wait=0")
			w.want("status during the cool-down", r.StatusCode, http.StatusTooManyRequests)
			w.want("requests upstream", w.upstreamSaw(), 1)
		})
	}
}
