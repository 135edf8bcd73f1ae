package proxy

import (
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
)

// longList is a JSON body that is worth a content coding.
var longList = "[" + strings.Repeat(`{"login":"octocat","type":"User"},`, 200) + "null]"

// listing returns an upstream with one response. Conditions are compared as RFC 9110 section 13.1.2 requires. Fields
// have the form "Name: value".
func listing(body string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		setFields(w, "Content-Type: application/json; charset=utf-8", fresh, `Etag: "v1"`, "Accept-Ranges: bytes")
		setFields(w, fields...)
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
	noError(w, err)
	text, err := io.ReadAll(plain)
	noError(w, err)
	return string(text)
}

func accepting(codings string) []string { return lines("Accept-Encoding: " + codings) }

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
		coded := lines("Vary: Accept-Encoding", "Content-Encoding: "+c.want, `Etag: "v1"`)
		if c.want != "" {
			coded = lines("Vary: Accept-Encoding", "Content-Encoding: "+c.want, `Etag: W/"v1"`, "Accept-Ranges: ")
		}
		for _, path := range []string{"/gitignore/templates", watchers, "/made-up"} {
			setup(listing(longList)).sub(t, fmt.Sprintf("%q %s", c.accept, path), func(w *world) {
				fields := lines(bearer("a"))
				if c.accept != "" {
					fields = append(fields, accepting(c.accept)...)
				}
				length := ""
				check := func(method, cache string, hasLength bool, more ...string) {
					r := w.do(method, path, nil, append(fields, more...)...)
					name, n := method+" "+cache, r.Header.Get("Content-Length")
					w.wantFields(name, r.Header, append(coded, "Cache-Status: weir; "+cache+"*")...)
					w.want(name+": has Content-Length", n != "", hasLength || c.want == "")
					if method == http.MethodHead {
						w.want(name+": Content-Length of GET", n == length || cache != "hit", true)
						return
					}
					w.want(name+": decoded body", w.decoded(r), longList)
					w.want(name+": smaller", len(r.body) < len(longList)/10, c.want != "")
					w.want(name+": Content-Length", cmp.Or(n, strconv.Itoa(len(r.body))), strconv.Itoa(len(r.body)))
					length = n
				}
				check(http.MethodHead, "fwd=uri-miss", false)
				check(http.MethodGet, "fwd=uri-miss", false)
				time.Sleep(time.Second)
				check(http.MethodGet, "hit", true)
				check(http.MethodHead, "hit", true)
				check(http.MethodGet, "fwd=request; fwd-status=304; stored", true, "Cache-Control: no-cache")
				w.want("requests upstream", w.upstreamSaw(), 3)
				for _, r := range w.seen.all() {
					w.want("Accept-Encoding upstream", r.Header.Get("Accept-Encoding"), "identity")
				}
			})
		}
	}
}

func TestCodingsOfOneEntry(t *testing.T) {
	var each []step // the coding of one client does not reach a client that does not accept it
	for i := range 2 {
		for _, c := range [][2]string{{"gzip", "gzip"}, {"zstd", "zstd"}, {"identity", ""}, {"br", ""}, {"zstd;q=0.1, gzip", "gzip"}} {
			each = append(each, step{request: accepting(c[0]), cached: i+len(each) > 0, body: longList, has: lines("Content-Encoding: " + c[1])})
		}
	}
	runScenarios(t, scenario{name: "different codings", path: "/gitignore/templates", upstream: listing(longList), steps: each})

	const gzip = "Accept-Encoding: gzip"
	for name, c := range map[string]struct {
		body     string
		response string // a field of the response
		request  string // a field of the request
		coding   string
		status   int
	}{
		"small body":                   {body: `["Go"]`},
		"compressed type":              {response: "Content-Type: image/png"},
		"no-transform of the response": {response: "Cache-Control: max-age=60, no-transform"},
		"no-transform of the request":  {request: "Cache-Control: no-transform"},
		"coding of the upstream":       {response: "Content-Encoding: made-up", coding: "made-up"},
		"digest":                       {response: "Content-Digest: sha-256=:AAAA:"},
		"range":                        {request: "Range: bytes=2-9", status: http.StatusPartialContent},
		"unsatisfiable range":          {request: "Range: bytes=99999-", status: http.StatusRequestedRangeNotSatisfiable},
	} {
		body := cmp.Or(c.body, longList)
		miss := step{request: lines(gzip, cmp.Or(c.request, "X-Request-Id: b")), code: c.status, body: body, has: lines("Content-Encoding: "+c.coding, `Etag: "v1"`)}
		store := step{cached: c.status == 0}
		switch c.status {
		case http.StatusPartialContent:
			miss.body, miss.has = body[2:10], append(miss.has, "Vary: Accept-Encoding")
		case http.StatusRequestedRangeNotSatisfiable:
			miss.body, miss.has = "", miss.has[:1]
		}
		hit := miss
		hit.cached = true
		runScenarios(t, scenario{name: "not encoded: " + name, upstream: listing(body, c.response), steps: []step{miss, store, hit}})
	}

	const weak, strong = `W/"v1"`, `"v1"`
	for name, c := range map[string]struct {
		condition string
		status    int
		etag      string // of the response
	}{
		"ETag of the coded form":    {"If-None-Match: " + weak, 304, weak},
		"ETag of the identity form": {"If-None-Match: " + strong, 304, strong},
		"list":                      {`If-None-Match: "v0", W/"v1"`, 304, weak},
		"any":                       {"If-None-Match: *", 304, strong},
		"other ETag":                {`If-None-Match: W/"v0"`, 200, weak},
		"none":                      {"X-Request-Id: none", 200, weak},
	} {
		miss := step{request: lines(gzip, c.condition), code: c.status, has: lines("Etag: "+c.etag, "Vary: Accept-Encoding")}
		if c.status == 200 {
			miss.body, miss.has = longList, append(miss.has, "Content-Encoding: gzip")
		} else {
			miss.lacks = lines("Content-Encoding", "Content-Length")
		}
		store, hit, stale := step{request: lines(gzip), cached: c.status == 200}, miss, miss
		hit.cached, stale.after = true, 2*time.Minute
		runScenarios(t, scenario{name: "condition: " + name, upstream: listing(longList), steps: []step{miss, store, hit, stale}})
	}

	// A range is a part of the identity form, so the ETag of a coded response selects the whole response. If-Match compares the
	// versions of the resource, which both forms share.
	runScenarios(t, scenario{name: "weak and strong ETags", upstream: listing(longList), steps: []step{
		{request: lines(gzip), has: lines("Etag: " + weak)},
		{request: lines(gzip, "Range: bytes=2-9", "If-Range: "+weak), cached: true},
		{request: lines(gzip, "Range: bytes=2-9", "If-Range: "+strong), cached: true, code: 206},
		{request: lines(gzip, "If-Match: "+weak)},
		{after: 2 * time.Minute, request: lines(gzip, "Range: bytes=2-9", "If-Range: "+weak)},
		{request: lines(gzip, "Range: bytes=2-9", "If-Range: "+strong), code: 206},
		{request: lines(gzip, "If-Match: "+weak)},
	}})
}

// In the github dialect a client of another token sends back the weak form of an ETag that Weir computed.
func TestETagOfCodedResponseProvesAccess(t *testing.T) {
	text := func(r *http.Request) string {
		if r.Header.Get("Authorization") == "Bearer other" {
			return strings.ToUpper(longList)
		}
		return longList
	}
	setup(digesting(text, "Content-Type: application/json"), github).run(t, func(w *world) {
		for i, token := range []string{"a", "b", "other"} {
			want := []string{longList, longList, strings.ToUpper(longList)}[i]
			get := func(fields ...string) got {
				return w.get(sbom, append(fields, bearer(token), "Accept-Encoding: gzip")...)
			}
			first := get()
			w.want(token+": status", first.StatusCode, 200)
			w.want(token+": coding", first.Header.Get("Content-Encoding"), "gzip")
			w.want(token+": body", w.decoded(first), want)
			w.want(token+": proof", strings.Contains(first.Header.Get("Cache-Status"), "fwd-status=304"), token == "b")
			w.want(token+": hit", get("If-None-Match: "+first.Header.Get("Etag")).StatusCode, 304)
			time.Sleep(2 * time.Minute)
			w.want(token+": stale", get("If-None-Match: "+first.Header.Get("Etag")).StatusCode, 304)
		}
	})
}

// coding returns an upstream that encodes the response itself.
func coding(control string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		setFields(w, "Content-Type: application/json", "Cache-Control: "+control, `Etag: "identity"`, "Vary: Accept-Encoding")
		body := []byte(longList)
		if c := contentcoding.Select(r.Header["Accept-Encoding"]); c != nil {
			setFields(w, "Content-Encoding: "+c.Name, `Etag: "`+c.Name+`"`)
			body = c.Encode(body)
		}
		setFields(w, fmt.Sprint("Content-Length: ", len(body)))
		_, _ = w.Write(body)
	}
}

// Responses that are not stored have the coding, ETag and length of the upstream.
func TestUncacheableResponsesPassInTheCodingOfTheUpstream(t *testing.T) {
	for _, c := range []struct{ name, method, path, field string }{
		{"method", http.MethodPost, "/made-up", "X-Request-Id: b"},
		{"class never", http.MethodGet, "/rate_limit", "Cache-Control: no-cache"},
		{"no-store of the request", http.MethodGet, "/made-up", "Cache-Control: no-store"},
		{"If-Match", http.MethodGet, "/made-up", `If-Match: "gzip"`},
		{"key known to be uncacheable", http.MethodGet, watchers, "X-Request-Id: b"},
		{"unknown route known to be uncacheable", http.MethodGet, "/made-up", "X-Request-Id: b"},
		{"key known to be uncacheable, with no-cache", http.MethodGet, "/made-up", "Cache-Control: no-cache"},
	} {
		setup(coding("no-store")).sub(t, c.name, func(w *world) {
			if strings.Contains(c.name, "known") {
				w.get(c.path, "Accept-Encoding: gzip")
			}
			r := w.do(c.method, c.path, nil, "Accept-Encoding: gzip;q=0.9", c.field)
			w.wantFields("response", r.Header, "Content-Encoding: gzip", `Etag: "gzip"`, "Vary: Accept-Encoding", fmt.Sprint("Content-Length: ", len(r.body)))
			w.want("body", w.decoded(r), longList)
			sent := w.seen.all()
			w.want("Accept-Encoding upstream", sent[len(sent)-1].Header.Get("Accept-Encoding"), "gzip;q=0.9")
		})
	}
	setup(coding("no-store")).sub(t, "uncacheable operation", func(w *world) {
		etags := map[string]int{}
		for i := range 40 {
			r := w.get(fmt.Sprintf("/repos/acme/r%d/subscribers", i), "Accept-Encoding: gzip")
			w.want("body", w.decoded(r), longList)
			etags[r.Header.Get("Etag")]++
		}
		failIf(w, etags[`"gzip"`] < 20, "ETags %v, want most responses in the coding of the upstream", etags)
	})
}

// A response that became cacheable is not stored in the coding of one client.
func TestCodedResponseOfTheUpstreamIsNotStored(t *testing.T) {
	control := "no-store"
	theirs, ours := lines("Content-Encoding: gzip", `Etag: "gzip"`), lines("Content-Encoding: gzip", `Etag: W/"identity"`)
	runScenarios(t, scenario{name: "gzip", upstream: func(w http.ResponseWriter, r *http.Request) { coding(control)(w, r) }, steps: []step{
		{request: accepting("gzip")}, {do: func(*world) { control = "max-age=60" }},
		{request: accepting("gzip"), cache: "weir; fwd=uri-miss; fwd-status=200", body: longList, has: theirs},
		{request: accepting("gzip"), cache: "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60", body: longList, has: ours},
		{request: accepting("gzip"), cached: true, cache: "weir; hit; ttl=60", body: longList, has: ours},
		{cached: true, body: longList, lacks: lines("Content-Encoding")},
	}})
}

// A 304 confirms a stored response, which has the identity form.
func TestConditionsOfWeirAskForTheIdentityForm(t *testing.T) {
	changed := strings.ToUpper(longList)
	response := func(control string) []string {
		return lines("Content-Type: application/json", "Cache-Control: "+control, `Etag: "v1"`, "Vary: Accept-Encoding")
	}
	for status, body := range map[int]string{304: longList, 200: changed} {
		runScenarios(t, scenario{name: strconv.Itoa(status), path: sbom, steps: []step{
			{token: "a", request: accepting("gzip"), response: response("no-store"), text: longList}, // marks the key of this caller as uncacheable
			{token: "b", response: response("max-age=60"), text: longList},                           // stores the response for another caller
			{
				token: "a", request: append(accepting("gzip"), "Cache-Control: no-cache"), status: status, response: response("max-age=60"), text: changed,
				body: body, cache: fmt.Sprintf("weir; fwd=uri-miss; fwd-status=%d", status) + map[int]string{304: "; stored; ttl=60"}[status], has: lines("Content-Encoding: gzip"),
				sent: lines(`If-None-Match: "v1"`, "Accept-Encoding: identity"),
			},
		}})
	}
}

// A coded stream reaches the client as soon as the upstream has sent it.
func TestCodedStreamIsNotDelayed(t *testing.T) {
	for _, accept := range []string{"gzip", "zstd"} {
		setup(func(w http.ResponseWriter, _ *http.Request) {
			setFields(w, "Content-Type: application/json", fresh)
			_, _ = io.WriteString(w, longList)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(w, "end")
		}).sub(t, accept, func(w *world) {
			start := time.Now()
			r, err := http.NewRequest(http.MethodGet, "http://gateway.test/made-up", http.NoBody)
			noError(w, err)
			r.Header.Set("Accept-Encoding", accept)
			resp, err := w.client.Do(r)
			noError(w, err)
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
	for kind, length := range map[string]int{"chunked": 0, "small": 2 * len(longList), "large": 100_000} {
		setup(func(w http.ResponseWriter, _ *http.Request) {
			setFields(w, "Content-Type: application/json", fresh)
			if length > 0 {
				w.Header().Set("Content-Length", strconv.Itoa(length))
			}
			_, _ = io.WriteString(w, longList)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}).sub(t, kind, func(w *world) {
			r := w.try(http.MethodGet, "/made-up", nil, "Accept-Encoding: gzip")
			failIf(w, r.err == nil && r.StatusCode == 200, "the client got a complete response")
		})
	}
}

// The client of net/http asks for gzip, and decodes the response by itself.
func TestTransparentDecompressionOfNetHTTP(t *testing.T) {
	setup(listing(longList)).run(t, func(w *world) {
		w.client.Transport.(*http.Transport).DisableCompression = false
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
	// The repetition removes the text of the message from the encoded body.
	text := `{"hints":["` + strings.Repeat("exceed a second ", 200) + `"],"message":"You have exceeded a secondary rate limit."}`
	for _, accept := range []string{"gzip", "zstd"} {
		encoded := string(contentcoding.Select(lines(accept)).Encode([]byte(text)))
		post := step{
			method: http.MethodPost, token: "a", request: append(accepting(accept), "Prefer: wait=0"), status: http.StatusForbidden, text: encoded,
			response: lines("Content-Type: application/json", "Content-Encoding: "+accept), code: http.StatusForbidden,
		}
		during := post
		during.cached, during.code = true, http.StatusTooManyRequests
		runScenarios(t, scenario{name: accept, path: "/made-up", steps: []step{post, during}})
	}
}

// A limit error in a coding that Weir cannot decode would start no cool-down.
func TestUpstreamUsesOnlyCodingsThatWeirDecodes(t *testing.T) {
	for _, c := range []struct{ accept, want string }{
		{"gzip, deflate, br", "gzip"},
		{"br;q=1, X-GZIP;q=0.5,zstd", "X-GZIP;q=0.5, zstd"},
		{"br", "identity"},
		{"*", "identity"},
		{"", "identity"},
	} {
		setup(responds(http.StatusCreated), asGitHub).sub(t, fmt.Sprintf("%q", c.accept), func(w *world) {
			for _, path := range []string{"/repos/acme/widgets/issues", "/made-up"} {
				w.do(http.MethodPost, path, strings.NewReader("{}"), bearer("a"), "Accept-Encoding: "+c.accept)
				w.want("Accept-Encoding upstream", w.lastSeen().Header.Get("Accept-Encoding"), c.want)
			}
			w.do(http.MethodDelete, "/repos/acme/widgets/subscription", nil, bearer("a"), "Accept-Encoding: "+c.accept)
			w.want("Accept-Encoding of DELETE upstream", w.lastSeen().Header.Get("Accept-Encoding"), c.want)
		})
	}
}

// The errors of a long GraphQL response are at its end, which Weir cannot read in a coding.
func TestLimitErrorAfterALongBodyOfACodingUpstreamIsRecognized(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"data":{"nodes":[`)
	for i := range 5000 {
		fmt.Fprintf(&body, `{"id":"R_%d"},`, i*2654435761)
	}
	body.WriteString(`null]},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`)
	for name, call := range map[string]string{
		"query":                    `{"query":"query{viewer{login}}"}`,
		"query without a question": `{"query":"query{viewer{login}}","extensions":{"trace":1}}`,
		"mutation":                 `{"query":"mutation{createIssue(input:{repositoryId:\"R_1\",title:\"a\"}){issue{id}}}"}`,
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if c := contentcoding.Select(r.Header["Accept-Encoding"]); c != nil {
				w.Header().Set("Content-Encoding", c.Name)
				_, _ = w.Write(c.Encode([]byte(body.String())))
				return
			}
			_, _ = io.WriteString(w, body.String())
		}, asGitHub).sub(t, name, func(w *world) {
			r := w.ask(call, bearer("a"), "Prefer: wait=0", "Accept-Encoding: gzip")
			w.want("body", w.decoded(r) == body.String(), true)
			w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			w.want("limit in the record", w.last().Limited, policy.LimitPrimary)
			w.wantReply("next call", w.ask(call, bearer("a"), "Prefer: wait=0"), http.StatusTooManyRequests)
		})
	}
}
