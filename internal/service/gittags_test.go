package service

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const widgetsTags = "/repos/acme/widgets/git/tags"

// TestTagsAreCreatedAndRead covers Document A section 4.6.
func TestTagsAreCreatedAndRead(t *testing.T) {
	runWithService(t, func(t *tester) {
		head := t.s.world.repositories[0].head()
		body := `{"tag":"v2.0.0","message":"The third one\n","object":"` + head + `","type":"commit",
			"tagger":{"name":"Ann","email":"ann@example.com","date":"2011-06-17T14:53:35-07:00"}}`
		w := t.do("member", http.MethodPost, widgetsTags, body)
		t.wantStatus(w, 201)
		made := decode[jsonObject](t, w)
		if w.Header().Get("Location") != made["url"] || made["url"] != "http://api.test"+widgetsTags+"/"+made["sha"].(string) {
			t.Errorf("got Location %s and url %s", w.Header().Get("Location"), made["url"])
		}
		if tagger := made["tagger"].(jsonObject); tagger["date"] != "2011-06-17T21:53:35Z" || tagger["name"] != "Ann" {
			t.Errorf("got tagger %v", tagger)
		}
		if v := made["verification"].(jsonObject); v["verified"] != false || v["reason"] != "unsigned" || v["signature"] != nil || v["payload"] != nil {
			t.Errorf("got verification %v", v)
		}
		if o := made["object"].(jsonObject); o["sha"] != head || o["url"] != "http://api.test/repos/acme/widgets/git/commits/"+head {
			t.Errorf("got object %v", o)
		}
		read := t.get("", widgetsTags+"/"+made["sha"].(string))
		t.wantStatus(read, 200)
		if read.Body.String() != w.Body.String() {
			t.Errorf("POST returned %s, GET returned %s", w.Body, read.Body)
		}
		again := t.do("member", http.MethodPost, widgetsTags, body)
		if again.Body.String() != w.Body.String() || len(t.s.world.repositories[0].tags) != 3 {
			t.Errorf("creating the same tag again returned %s", again.Body)
		}
	})
}

func TestLastModifiedOfATagIgnoresTheTaggerDate(t *testing.T) {
	runWithService(t, func(t *tester) {
		time.Sleep(time.Hour)
		body := `{"tag":"v2","message":"m","object":"` + t.s.world.repositories[0].head() + `","type":"commit","tagger":{"name":" A ","email":"a@example.com","date":"2040-01-01T00:00:00Z"}}`
		made := decode[jsonObject](t, t.do("member", http.MethodPost, widgetsTags, body))
		time.Sleep(time.Hour)
		read := t.get("", widgetsTags+"/"+made["sha"].(string))
		if got := read.Header().Get("Last-Modified"); got != "Sat, 01 Jan 2000 01:00:00 GMT" {
			t.Errorf("got Last-Modified %s", got)
		}
		if tagger := decode[jsonObject](t, read)["tagger"].(jsonObject); tagger["date"] != "2040-01-01T00:00:00Z" || tagger["name"] != "A" {
			t.Errorf("got tagger %v", tagger)
		}
	})
}

// TestTagNamesMatchGit compares the SHA of a new tag with the output of git hash-object -t tag.
func TestTagNamesMatchGit(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	tag := newTag(at, "v0.0.1", "initial version\n", "c3d0be41ecbe669545ee3e94d31ed9a4bc91ee3c", "commit", signer{"Ann", "ann@example.com", at})
	if want := "396f0c9a253897c1606f17e338d7cc427b49dd8f"; tag.sha != want {
		t.Errorf("got %s, want %s", tag.sha, want)
	}
}

// TestBlobNamesMatchGit compares the SHA of a file's blob with the output of git hash-object.
func TestBlobNamesMatchGit(t *testing.T) {
	runWithService(t, func(t *tester) {
		r, other := t.s.world.repositories[0], t.s.world.repositories[1]
		for content, want := range map[string]string{
			"": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "hello\n": "ce013625030ba8dba906f756967f9e9ca394464a",
		} {
			if got := (file{path: "a", content: content}).sha(r); got != want {
				t.Errorf("%q: got %s, want %s", content, got, want)
			}
		}
		names := map[string]bool{}
		for _, f := range r.files {
			names[f.sha(r)] = true
		}
		if len(names) != len(r.files) {
			t.Errorf("got %d names for %d files", len(names), len(r.files))
		}
		large := file{path: "a", size: 1}
		if name := large.sha(r); name == large.sha(other) || name == (file{path: "b", size: 1}).sha(r) {
			t.Error("files without stored content share a name")
		}
	})
}

func TestTagVerificationReportsTheSignature(t *testing.T) {
	runWithService(t, func(t *tester) {
		valid := t.s.world.repositories[0].tags[0]
		v := decode[jsonObject](t, t.get("", widgetsTags+"/"+valid.sha))["verification"].(jsonObject)
		if v["verified"] != true || v["reason"] != "valid" || !strings.HasPrefix(v["signature"].(string), signatureBegin) || !strings.HasPrefix(v["payload"].(string), "object "+valid.target) {
			t.Errorf("got verification %v", v)
		}
		head := t.s.world.repositories[0].head()
		for message, reason := range map[string]string{
			"m": "unsigned",
			`m\n` + signatureBegin + `\nx\n` + signatureEnd: "unknown_key",
			`m\n` + signatureBegin + `\nx`:                  "malformed_signature",
		} {
			w := t.do("member", http.MethodPost, widgetsTags, `{"tag":"v3","message":"`+message+`","object":"`+head+`","type":"tree"}`)
			t.wantStatus(w, 201)
			if v := decode[jsonObject](t, w)["verification"].(jsonObject); v["reason"] != reason || v["verified"] != false || (v["signature"] == nil) != (reason == "unsigned") {
				t.Errorf("%q: got verification %v", message, v)
			}
		}
	})
}

func TestCreateTagRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		r := t.s.world.repositories[0]
		with := func(from, to string) string {
			return strings.Replace(`{"tag":"v2","message":"m","object":"`+r.head()+`","type":"commit","tagger":{"name":"A","email":"a@example.com"}}`, from, to, 1)
		}
		for _, c := range []struct {
			credential, target, body string
			status                   int
			field                    string
		}{
			{"member", widgetsTags, with("", ""), 201, ""},
			{"app", widgetsTags, with("v2", "v3"), 201, ""},
			{"workflow", widgetsTags, with("v2", "v4"), 201, ""},
			{"member", widgetsTags, with(`"type":"commit"`, `"type":"blob"`), 422, "object"},
			{"member", widgetsTags, strings.Replace(with(`"type":"commit"`, `"type":"blob"`), r.head(), r.files[0].sha(r), 1), 201, ""},
			{"member", widgetsTags, with(`"tag":"v2",`, ""), 422, "tag"},
			{"member", widgetsTags, with(`"message":"m",`, ""), 422, "message"},
			{"member", widgetsTags, with(`"object":"`+r.head()+`",`, ""), 422, "object"},
			{"member", widgetsTags, with(`,"type":"commit"`, ""), 422, "type"},
			{"member", widgetsTags, with(`"type":"commit"`, `"type":"branch"`), 422, "type"},
			{"member", widgetsTags, with(r.head(), strings.Repeat("0", 40)), 422, "object"},
			{"member", widgetsTags, with(`"name":"A",`, ""), 422, "tagger.name"},
			{"member", widgetsTags, with(`,"email":"a@example.com"`, ""), 422, "tagger.email"},
			{"member", widgetsTags, with(`"name":"A",`, `"name":"A","date":"yesterday",`), 422, "tagger.date"},
			{"member", widgetsTags, with(`"name":"A",`, `"name":"A","date":"9999-12-31T23:59:59Z",`), 201, ""},
			{"member", widgetsTags, with(`"name":"A",`, `"name":"A","date":"9999-12-31T23:59:59-01:00",`), 422, "tagger.date"}, // 10000 in UTC
			{"member", widgetsTags, with(`"name":"A",`, `"name":"A","date":"0000-01-01T00:00:00+01:00",`), 422, "tagger.date"},
			{"member", widgetsTags, with(`"name":"A"`, `"name":" "`), 422, "tagger.name"},
			{"member", widgetsTags, with(`"name":"A"`, `"name":"A\nB"`), 422, "tagger.name"},
			{"member", widgetsTags, with(`"name":"A"`, `"name":"A\u0000"`), 422, "tagger.name"},
			{"member", widgetsTags, with(`"name":"A"`, `"name":"A <B"`), 422, "tagger.name"},
			{"member", widgetsTags, with(`"name":"A"`, `"name":"A> B"`), 422, "tagger.name"},
			{"member", widgetsTags, with(`a@example.com`, `\t `), 422, "tagger.email"},
			{"member", widgetsTags, with(`a@example.com`, `a@example.com\n`), 422, "tagger.email"},
			{"member", widgetsTags, with(`a@example.com`, `<a@example.com`), 422, "tagger.email"},
			{"member", widgetsTags, with(`a@example.com`, `a@example.com>`), 422, "tagger.email"},
			{"member", widgetsTags, with(`"v2"`, "2"), 422, "tag"},
			{"member", widgetsTags, "{", 400, ""},
			{"member", "/repos/acme/empty/git/tags", with("", ""), 409, ""},
			{"outsider", widgetsTags, with("", ""), 403, ""},
			{"outsider", "/repos/acme/secret/git/tags", with("", ""), 404, ""},
			{"", widgetsTags, with("", ""), 401, ""},
		} {
			w := t.do(c.credential, http.MethodPost, c.target, c.body)
			if w.Code != c.status || c.field != "" && !namesField(w, "Tag", c.field) {
				t.Errorf("%s as %q, %s: got %d %s, want %d %s", c.target, c.credential, c.body, w.Code, w.Body, c.status, c.field)
			}
		}
		t.wantStatus(t.get("", widgetsTags+"/"+strings.Repeat("0", 40)), 404)
		t.wantStatus(t.get("", "/repos/acme/empty/git/tags/00"), 409)
		t.wantStatus(t.get("outsider", "/repos/acme/secret/git/tags/00"), 404)
	})
}

// namesField reports whether a validation error names a field of a resource.
func namesField(w *httptest.ResponseRecorder, resource, field string) bool {
	return strings.Contains(w.Body.String(), `"resource":"`+resource+`","field":"`+field+`"`)
}

func TestSBOMListsLanguages(t *testing.T) {
	runWithService(t, func(t *tester) {
		const path = "/repos/acme/widgets/dependency-graph/sbom"
		sbom := decode[jsonObject](t, t.get("", path))["sbom"].(jsonObject)
		var all []string
		for _, p := range sbom["packages"].([]any) {
			all = append(all, p.(jsonObject)["SPDXID"].(string))
		}
		if strings.Join(all, " ") != "SPDXRef-Repository SPDXRef-go SPDXRef-py" || sbom["documentDescribes"].([]any)[0] != all[0] {
			t.Errorf("got packages %q, describing %v", all, sbom["documentDescribes"])
		}
		if w := t.get("", "/repos/acme/empty/dependency-graph/sbom"); len(decode[jsonObject](t, w)["sbom"].(jsonObject)["packages"].([]any)) != 1 {
			t.Errorf("got %s, want one package", w.Body)
		}
		t.wantStatus(t.get("outsider", "/repos/acme/secret/dependency-graph/sbom"), 404)
		t.wantStatus(t.get("member", "/repos/acme/secret/dependency-graph/sbom"), 200)
	})
}
