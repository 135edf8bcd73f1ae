package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

const widgetsTags = "/repos/acme/widgets/git/tags"

// TestTagsAreCreatedAndRead covers Document A section 4.6.
func TestTagsAreCreatedAndRead(t *testing.T) {
	runWithService(t, func(t *tester) {
		head := t.s.world.repositories[0].head()
		request := "POST " + widgetsTags + ` {"tag":"v2.0.0","message":"The third one\n","object":"` + head + `","type":"commit",
			"tagger":{"name":"Ann","email":"ann@example.com","date":"2011-06-17T14:53:35-07:00"}}`
		w := t.call("member", request, 201, `{"tagger":{"date":"2011-06-17T21:53:35Z","name":"Ann"},
			"verification":{"verified":false,"reason":"unsigned","signature":null,"payload":null},
			"object":{"sha":"`+head+`","url":"http://api.test/repos/acme/widgets/git/commits/`+head+`"}}`)
		made := decode[struct{ SHA, URL string }](t, w)
		failIf(t, w.Header().Get("Location") != made.URL || made.URL != "http://api.test"+widgetsTags+"/"+made.SHA, "got Location %s and url %s", w.Header().Get("Location"), made.URL)
		t.call("", "GET "+widgetsTags+"/"+made.SHA, 200, "="+w.Body.String())
		t.call("member", request, 201, "="+w.Body.String()) // the same tag
		t.wantEqual("tags", 3, len(t.s.world.repositories[0].git.tags))
	})
}

func TestLastModifiedOfATagIgnoresTheTaggerDate(t *testing.T) {
	runWithService(t, func(t *tester) {
		time.Sleep(time.Hour)
		w := t.do("member", "POST "+widgetsTags+` {"tag":"v2","message":"m","object":"`+t.s.world.repositories[0].head()+`","type":"commit",
			"tagger":{"name":" A ","email":"a@example.com","date":"2040-01-01T00:00:00Z"}}`)
		time.Sleep(time.Hour)
		t.call("", "GET "+widgetsTags+"/"+decode[struct{ SHA string }](t, w).SHA, 200,
			"Last-Modified: Sat, 01 Jan 2000 01:00:00 GMT\n"+`{"tagger":{"date":"2040-01-01T00:00:00Z","name":"A"}}`)
	})
}

// TestTagNamesMatchGit compares the SHA of a new tag with the output of git hash-object -t tag.
func TestTagNamesMatchGit(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	tag := newTag(at, "v0.0.1", "initial version\n", "c3d0be41ecbe669545ee3e94d31ed9a4bc91ee3c", "commit", signer{"Ann", "ann@example.com", at})
	testservers.Equal(t, "SHA", tag.sha, "396f0c9a253897c1606f17e338d7cc427b49dd8f")
}

// TestBlobNamesMatchGit compares the SHA of a file's blob with the output of git hash-object.
func TestBlobNamesMatchGit(t *testing.T) {
	runWithService(t, func(t *tester) {
		r := t.s.world.repositories[0]
		for content, want := range map[string]string{
			"": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "hello\n": "ce013625030ba8dba906f756967f9e9ca394464a",
		} {
			t.wantEqual(content, want, r.git.blob(content))
		}
		names := map[string]bool{}
		for _, sha := range r.git.files(r.head()) {
			names[sha] = true
		}
		t.wantEqual("number of names", len(r.paths()), len(names))
	})
}

func TestTagVerificationReportsTheSignature(t *testing.T) {
	runWithService(t, func(t *tester) {
		valid := t.s.world.repositories[0].git.tags[0]
		w := t.call("", "GET "+widgetsTags+"/"+valid.sha, 200, `{"verification":{"verified":true,"reason":"valid"}}`)
		v := decode[struct {
			Verification struct{ Signature, Payload string }
		}](t, w).Verification
		failIf(t, !strings.HasPrefix(v.Signature, signatureBegin) || !strings.HasPrefix(v.Payload, "object "+valid.target), "got verification %v", v)
		for message, want := range map[string]string{
			"m": `"reason":"unsigned","signature":null`,
			`m\n` + signatureBegin + `\nx\n` + signatureEnd: `"reason":"unknown_key","signature":"*"`,
			`m\n` + signatureBegin + `\nx`:                  `"reason":"malformed_signature","signature":"*"`,
		} {
			t.call("member", fmt.Sprintf(`POST %s {"tag":"v3","message":"%s","object":"%s","type":"tree"}`,
				widgetsTags, message, t.s.world.repositories[0].head()), 201, `{"verification":{"verified":false,`+want+"}}")
		}
	})
}

func TestCreateTagRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		r := t.s.world.repositories[0]
		body := `{"tag":"v2","message":"m","object":"` + r.head() + `","type":"commit","tagger":{"name":"A","email":"a@example.com"}}`
		for _, c := range []struct {
			from, to string
			status   int
			field    string
		}{
			{"", "", 201, ""},
			{`"type":"commit"`, `"type":"blob"`, 422, "object"},
			{r.head() + `","type":"commit"`, r.git.files(r.head())[r.paths()[0]] + `","type":"blob"`, 201, ""},
			{`"tag":"v2",`, "", 422, "tag"},
			{`"message":"m",`, "", 422, "message"},
			{`"object":"` + r.head() + `",`, "", 422, "object"},
			{`,"type":"commit"`, "", 422, "type"},
			{`"type":"commit"`, `"type":"branch"`, 422, "type"},
			{r.head(), strings.Repeat("0", 40), 422, "object"},
			{`"name":"A",`, "", 422, "tagger.name"},
			{`,"email":"a@example.com"`, "", 422, "tagger.email"},
			{`"name":"A",`, `"name":"A","date":"yesterday",`, 422, "tagger.date"},
			{`"name":"A",`, `"name":"A","date":"9999-12-31T23:59:59Z",`, 201, ""},
			{`"name":"A",`, `"name":"A","date":"9999-12-31T23:59:59-01:00",`, 422, "tagger.date"}, // 10000 in UTC
			{`"name":"A",`, `"name":"A","date":"0000-01-01T00:00:00+01:00",`, 422, "tagger.date"},
			{`"name":"A"`, `"name":" "`, 422, "tagger.name"},
			{`"name":"A"`, `"name":"A\nB"`, 422, "tagger.name"},
			{`"name":"A"`, `"name":"A\u0000"`, 422, "tagger.name"},
			{`"name":"A"`, `"name":"A <B"`, 422, "tagger.name"},
			{`"name":"A"`, `"name":"A> B"`, 422, "tagger.name"},
			{`a@example.com`, `\t `, 422, "tagger.email"},
			{`a@example.com`, `a@example.com\n`, 422, "tagger.email"},
			{`a@example.com`, `<a@example.com`, 422, "tagger.email"},
			{`a@example.com`, `a@example.com>`, 422, "tagger.email"},
			{`"v2"`, "2", 422, "tag"},
		} {
			want := ""
			if c.field != "" {
				want = `"resource":"Tag","field":"` + c.field + `"`
			}
			t.call("member", "POST "+widgetsTags+" "+strings.Replace(body, c.from, c.to, 1), c.status, want)
		}
		t.calls([]call{
			{"app", "POST " + widgetsTags + " " + strings.Replace(body, "v2", "v3", 1), 201, ""},
			{"workflow", "POST " + widgetsTags + " " + strings.Replace(body, "v2", "v4", 1), 201, ""},
			{"member", "POST " + widgetsTags + " {", 400, ""},
			{"member", "POST /repos/acme/empty/git/tags " + body, 409, ""},
			{"outsider", "POST " + widgetsTags + " " + body, 403, ""},
			{"outsider", "POST /repos/acme/secret/git/tags " + body, 404, ""},
			{"", "POST " + widgetsTags + " " + body, 401, ""},
			{"", "GET " + widgetsTags + "/" + strings.Repeat("0", 40), 404, ""},
			{"", "GET /repos/acme/empty/git/tags/00", 409, ""},
			{"outsider", "GET /repos/acme/secret/git/tags/00", 404, ""},
		})
	})
}

func TestSBOMListsLanguages(t *testing.T) {
	const sbom = "/dependency-graph/sbom"
	runCalls(t, []call{
		{"", "GET /repos/acme/widgets" + sbom, 200, `{"sbom":{"documentDescribes":["SPDXRef-Repository","..."],
			"packages":[{"SPDXID":"SPDXRef-Repository"},{"SPDXID":"SPDXRef-go"},{"SPDXID":"SPDXRef-py"}]}}`},
		{"", "GET /repos/acme/empty" + sbom, 200, `{"sbom":{"packages":"#1"}}`},
		{"outsider", "GET /repos/acme/secret" + sbom, 404, ""},
		{"member", "GET /repos/acme/secret" + sbom, 200, ""},
	})
}
