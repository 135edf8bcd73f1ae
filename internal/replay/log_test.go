package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// read returns the requests of a text, and the error at its end.
func read(text string, format Format) (list []Request, err error) {
	for r, err := range Ordered(&Log{Name: "x.log", Reader: strings.NewReader(text), Format: format}) {
		if err != nil {
			return list, err
		}
		list = append(list, r)
	}
	return list, nil
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func target(text string) *url.URL {
	u, err := parseTarget(text)
	if err != nil {
		panic(err)
	}
	return u
}

const (
	weirLog  = `time=2026-01-02T12:00:00.120Z level=INFO msg=request request=R1 method=GET route="/repos/{owner}/{repo}" path=/repos/acme/widgets target=ab12 operation=repos/get account=octo-bot status=200 bytes=900 elapsed=120ms cache="weir; fwd=stale; fwd-status=200; stored; ttl=60" attempts=1 spent=1 waited=20ms client=builds`
	weirJSON = `{"time":"2026-01-02T12:00:00.12Z","level":"INFO","msg":"request","request":"R1","method":"GET","route":"/repos/{owner}/{repo}","path":"/repos/acme/widgets","target":"ab12","operation":"repos/get","account":"octo-bot","status":200,"bytes":900,"elapsed":120000000,"cache":"weir; fwd=stale; fwd-status=200; stored; ttl=60","attempts":1,"spent":1,"waited":20000000,"client":"builds"}`
	harLog   = `{"log":{"version":"1.2","pages":[{"id":"p"}],"entries":[{"startedDateTime":"2026-01-02T12:00:00Z","time":120.5,"request":{"method":"GET","url":"https://api.example.com/user"},"response":{"status":200,"headers":[{"name":"ETag","value":"\"e\""}],"content":{"size":10}}}]}}`
)

func TestLogsOfEachFormatAreRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Request
	}{
		{"weir", weirLog, Request{
			Start: noon, Method: "GET", URL: target("/repos/acme/widgets"), TargetHash: "ab12", Client: "builds", Account: "octo-bot", Status: 200,
			Bytes: 900, Latency: 100 * time.Millisecond, Spent: 1, FromWeir: true, Changed: true,
		}},
		{"weir in JSON", weirJSON, Request{
			Start: noon, Method: "GET", URL: target("/repos/acme/widgets"), TargetHash: "ab12", Client: "builds", Account: "octo-bot", Status: 200,
			Bytes: 900, Latency: 100 * time.Millisecond, Spent: 1, FromWeir: true, Changed: true,
		}},
		{"weir, refused by a limit", `time=2026-01-02T12:00:00Z level=INFO msg=request method=GET path=/user status=429 bytes=9 elapsed=0s cache="weir; fwd=uri-miss; detail=primary" attempts=0`,
			Request{Start: noon, Method: "GET", URL: target("/user"), Bytes: 9, FromWeir: true}},
		{"weir, refused by a check", `time=2026-01-02T12:00:00Z level=INFO msg=request method=GET path=/search/code status=422 bytes=9 elapsed=0s cache="weir; detail=search-query" attempts=0`,
			Request{Start: noon, Method: "GET", URL: target("/search/code"), Status: 422, Bytes: 9, FromWeir: true, Own: true}},
		{"nginx", `{"msec":"1767355200.500","request":"GET /user?a=1 HTTP/1.1","status":"200","body_bytes_sent":"15","request_time":"0.500","remote_user":"-"}`,
			Request{Start: noon, Method: "GET", URL: target("/user?a=1"), Status: 200, Bytes: 15, Latency: 500 * time.Millisecond}},
		{"Envoy", `{"start_time":"2026-01-02T12:00:00.000Z","method":"GET","path":"/user","response_code":304,"duration":120,"bytes_sent":0,"user":"ci"}`,
			Request{Start: noon, Method: "GET", URL: target("/user"), Status: 304, Latency: 120 * time.Millisecond, Client: "ci"}},
		{"URL, query and ETag", `{"ts":1767355200,"method":"GET","url":"https://api.example.com/user","query":"page=2","status":200,"duration":"0s","etag":"\"e\""}`,
			Request{Start: noon, Method: "GET", URL: target("https://api.example.com/user?page=2"), Status: 200, Bytes: -1, ETag: `"e"`}},
		{"HAR", harLog, Request{
			Start: noon, Method: "GET", URL: target("https://api.example.com/user"), Status: 200, Bytes: 10, ETag: `"e"`, Latency: 120500 * time.Microsecond,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := read("\n"+c.text+"\n", Auto)
			if c.want.FromWeir {
				got, err = read(c.text, Auto) // the log of a process begins without an empty line
			}
			testservers.NoError(t, err)
			testservers.Equal(t, "requests", got, []Request{c.want})
		})
	}
}

func TestOtherMessagesOfWeirAreIgnored(t *testing.T) {
	other := "time=2026-01-02T12:00:00Z level=INFO msg=\"gateway started\" address=:8080\n"
	background := strings.Replace(weirLog, "attempts=1", "attempts=1 background=true", 1) + "\n"
	otherJSON := `{"time":"2026-01-02T12:00:00Z","level":"INFO","msg":"gateway started","address":":8080"}` + "\n"
	backgroundJSON := strings.Replace(weirJSON, `"attempts":1`, `"attempts":1,"background":true`, 1) + "\n"
	for _, log := range []string{other + background + weirLog, otherJSON + backgroundJSON + weirJSON} {
		got, err := read(log, Auto)
		failIf(t, err != nil || len(got) != 1, "got %d requests, %v, want one of %s", len(got), err, log)
	}
}

func TestMalformedLogsAreErrorsWithPlaceAndRemedy(t *testing.T) {
	const line = `{"time":"2026-01-02T12:00:00Z","method":"GET","path":"/user","status":200}`
	for _, c := range []struct{ name, text, want string }{
		{"no JSON", line + "\nGET /user\n", "read log x.log:2: invalid character"},
		{"no path", strings.Replace(line, `"path"`, `"x"`, 1), `read log x.log:1: no field "path"; write path, url, uri, request_uri, or a request line as request`},
		{"no method", strings.Replace(line, `"method"`, `"x"`, 1), `no field "method"; write method, request_method`},
		{"no time", strings.Replace(line, `"time"`, `"x"`, 1), `no field "time"; write time,`},
		{"no status", strings.Replace(line, `"status"`, `"x"`, 1), `no field "status"; write status`},
		{"status", strings.Replace(line, "200", "2000", 1), `field "status": "2000" is invalid; write a status from 100 to 599`},
		{"time", strings.Replace(line, "2026-01-02T12", "noon", 1), `field "time": "noon:00:00Z" is invalid; write RFC 3339 or Unix seconds`},
		{"target", strings.Replace(line, "/user", "user", 1), `field "path": "user" is invalid; write a path that begins with a slash, or a URL`},
		{"long line", `{"method":"` + strings.Repeat("x", maxLine) + `"}`, "x.log:1: the line is longer than 1 MiB"},
		{"earlier Weir", strings.Replace(weirLog, "path=", "other=", 1), `x.log:1: no field "path"; an earlier version of Weir wrote the log`},
		{"status of Weir in JSON", strings.Replace(weirJSON, `"status":200`, `"status":-1`, 1), `field "status": "-1" is invalid`},
		{"status of Weir", strings.Replace(weirLog, "status=200", "status=-1", 1), `field "status": "-1" is invalid`},
		{"no entries", `{"log":{"version":"1.2"}}`, `read log x.log: no array log.entries; save the file as HAR 1.2: no member "entries"`},
		{"incomplete HAR", harLog[:len(harLog)-3], "read log x.log: entry 2: unexpected end of JSON input; save the file again as HAR 1.2"},
		{"HAR entry", strings.Replace(harLog, `"url"`, `"x"`, 1), `read log x.log: entry 1: no field "request.url"`},
	} {
		_, err := read(c.text, Auto)
		failIf(t, err == nil || !strings.Contains(err.Error(), c.want), "%s: got %v, want %q", c.name, err, c.want)
	}
}

func TestMalformedLinesAreSkippedOnDemand(t *testing.T) {
	text := "{}\n" + `{"time":"2026-01-02T12:00:00Z","method":"GET","path":"/user","status":200}` + "\nnonsense\n"
	l := &Log{Name: "x", Reader: strings.NewReader(text), Format: JSONL, SkipInvalid: true}
	n := 0
	for _, err := range l.Requests() {
		testservers.NoError(t, err)
		n++
	}
	failIf(t, n != 1 || l.Skipped != 2, "%d requests and %d skipped lines, want 1 and 2", n, l.Skipped)
}

// failing is a file whose second read fails.
type failing struct{ read bool }

func (f *failing) Read(p []byte) (int, error) {
	if f.read {
		return 0, errors.New("disk failed")
	}
	f.read = true
	return copy(p, strings.Repeat(" ", recognized-1)+"\n"), nil
}

func TestReadErrorsStopALogThatSkipsMalformedLines(t *testing.T) {
	for _, err := range (&Log{Name: "x", Reader: &failing{}, Format: JSONL, SkipInvalid: true}).Requests() {
		failIf(t, err == nil || !strings.Contains(err.Error(), "disk failed"), "got %v, want the error of the file", err)
		return
	}
	t.Error("got no error")
}

func TestRequestsOfAllLogsAreOrderedByStart(t *testing.T) {
	log := func(path string, starts ...int) *Log {
		var b strings.Builder
		for _, s := range starts {
			fmt.Fprintf(&b, `{"start_time":%q,"method":"GET","path":"/%s","status":200}`+"\n", noon.Add(time.Duration(s)*time.Second).Format(time.RFC3339), path)
		}
		return &Log{Name: path, Reader: strings.NewReader(b.String()), Format: JSONL}
	}
	var got []string
	for r, err := range Ordered(log("a", 5, 1, 3, 200, 150), log("b", 2, 4, 160)) {
		testservers.NoError(t, err)
		got = append(got, fmt.Sprint(r.URL.Path, int(r.Start.Sub(noon).Seconds())))
	}
	testservers.Equal(t, "requests", got, []string{"/a1", "/b2", "/a3", "/b4", "/a5", "/a150", "/b160", "/a200"})
}

// FuzzLog checks that no log causes a panic, and that each request of a log is usable.
func FuzzLog(f *testing.F) {
	for _, seed := range []string{
		weirLog, weirJSON, harLog, `{"time":"2026-01-02T12:00:00Z","method":"GET","path":"/user","status":200,"duration":1e300}`, `{"log":{"entries":[{}`,
		`time=1 msg=request path="\x`, `{"msec":9e99,"request":"GET","status":200}`,
	} {
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, text string, skip bool) {
		for _, format := range []Format{Auto, Weir, JSONL, HAR} {
			for r, err := range Ordered(&Log{Name: "x", Reader: strings.NewReader(text), Format: format, SkipInvalid: skip}) {
				if err != nil {
					break
				}
				failIf(t, r.Method == "" || r.URL == nil || r.Latency < 0 || r.Latency > maxLatency || r.Start.Year() < 1969 || r.Start.Year() > 2242, "%s: invalid request %+v", format, r)
			}
		}
	})
}

// TestReportsShowNoCredentialOfALog puts credentials into the fields that name a client. The names in the report are hashes, so
// that two credentials stay two clients.
func TestReportsShowNoCredentialOfALog(t *testing.T) {
	credentials := []string{
		"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "github_pat_11ABCDEFG0abcdefghijkl", "ghs_12345_eyJhbGciOi.eyJpc3MiOi.c2ln", "0123456789abcdef0123456789abcdef01234567", "0123456789ABCDEF0123456789ABCDEF01234567",
		"weir_ABCDEFGHIJKLMNOPQRSTUVWX23", "WEIR_abcdefghijklmnopqrstuvwx23", "tok-owner", "Bearer abc", "Basic b2N0b2NhdDp4", "octocat:secret", "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0.c2ln",
		"user 9Hq4xWzT7rKp2mVs8bNd",
	}
	for _, field := range []string{"user", "client", "remote_user"} {
		labels := map[string]bool{}
		for _, credential := range credentials {
			requests := testservers.Must(read(fmt.Sprintf("\n"+`{"ts":1767355200,"method":"GET","path":"/user","status":200,%q:%q}`+"\n", field, credential), Auto))
			report := testservers.Must(Run(t.Context(), configuration(t), sequence(requests)))
			text, _ := json.Marshal(report)
			failIf(t, strings.Contains(string(text), credential) || strings.Contains(fmt.Sprint(report), credential), "%s: the report shows %s", field, credential)
			labels[requests[0].Client] = true
		}
		failIf(t, len(labels) != len(credentials), "%s: %d credentials are %d clients", field, len(credentials), len(labels))
		for _, name := range []string{"ci", "octocat", "octo@example.com", "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "spiffe://example.org/ns/ci/sa/builds", "build-agents-of-the-payments-team-2"} {
			requests, err := read(fmt.Sprintf("\n"+`{"ts":1767355200,"method":"GET","path":"/user","status":200,%q:%q}`+"\n", field, name), Auto)
			failIf(t, err != nil || requests[0].Client != name, "%s: %s is %s, %v", field, name, requests[0].Client, err)
		}
	}
	line := strings.Replace(weirLog, "builds", credentials[0], 1)
	requests, err := read(line, Auto)
	failIf(t, err != nil || strings.Contains(fmt.Sprint(requests), credentials[0]), "access log of Weir: got %v, %v", requests, err)
}
