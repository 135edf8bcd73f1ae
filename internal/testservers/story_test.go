package testservers

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestStoryChecksEachLine(t *testing.T) {
	w := httptest.NewRecorder()
	w.Header().Set("Link", "<http://a>; rel=next")
	_, _ = w.WriteString(`[{"slug":"a","n":1,"o":{"x":null,"y":[1,2,3]}},{"slug":"b"}]`)
	for want, matches := range map[string]bool{
		"": true, "Link: <http://a>...": true, "Link: <http://a>": false, "Link:": false, "Location:": true, "Location: /a": false,
		"each slug: a b": true, "each slug: a": false, "#2": true, "#3": false, `"slug":"b"`: true, `"slug":"c"`: false, `!"slug":"c"`: true, `!"slug":"b"`: false,
		"=[]": false, "=" + w.Body.String(): true,
		`[{},{}]`: true, `[{}]`: false, `[{},"..."]`: true, `[{},{},{},"..."]`: false, `{}`: false,
		`[{"n":1},{"n":"-"}]`: true, `[{"n":"-"},{}]`: false, `[{"n":2},{}]`: false, `[{},{"n":1}]`: false,
		`[{"n":"$n","o":{"y":["$n",2,3]}},{}]`: true, `[{"slug":"$s"},{"slug":"$s"}]`: false, `[{},{"n":"$n"}]`: false,
		`[{"slug":"*","o":{"x":null,"y":"#3"}},{}]`: true, `[{"o":{"x":"*"}},{}]`: false, `[{"o":{"y":"#2"}},{}]`: false, `[{"o":{"y":[1,2]}},{}]`: false,
		"Link: <http://a>...\n[{},\n{}]\n\"slug\"": true, "[{},{}]\n=x": false,
	} {
		if got := (&Story{}).Differences(w, 200, want); (got == "") != matches {
			t.Errorf("%s: got %q", want, got)
		}
	}
	if (&Story{}).Differences(w, 201, "") == "" {
		t.Error("another status is no difference")
	}
}

func TestStoryUsesValuesOfEarlierResponses(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, `{"id":7,"url":%q,"as":%q,"body":%q}`, r.URL, r.Header["Authorization"], body)
	})
	story := &Story{Handler: handler, Host: "a.test", Authorization: strings.ToUpper}
	story.Call(t, "ann\nAccept: a", `POST /x {"a": 1}`, 200, `{"id":"$id","url":"http://a.test/x","as":["ANN"],"body":"{\"a\": 1}"}`)
	story.Call(t, "", "GET http://b.test/$id", 200, `{"id":"$id","url":"http://b.test/7","as":[],"body":""}`)
}
