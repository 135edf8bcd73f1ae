package testservers

import (
	"net/http/httptest"
	"testing"
)

func TestResponseDifferencesChecksEachLine(t *testing.T) {
	w := httptest.NewRecorder()
	w.Header().Set("Link", "<http://a>; rel=next")
	_, _ = w.WriteString(`[{"slug":"a","n":1,"o":{"x":null,"y":[1,2,3]}},{"slug":"b"}]`)
	for want, matches := range map[string]bool{
		"": true, "Link: <http://a>...": true, "Link: <http://a>": false, "Link:": false, "Location:": true, "Location: /a": false,
		"each slug: a b": true, "each slug: a": false, "#2": true, "#3": false, `"slug":"b"`: true, `"slug":"c"`: false, `!"slug":"c"`: true, `!"slug":"b"`: false,
		"=[]": false, "=" + w.Body.String(): true,
		`[{},{}]`: true, `[{}]`: false, `[{},"..."]`: true, `[{},{},{},"..."]`: false, `{}`: false,
		`[{"n":1},{"n":"-"}]`: true, `[{"n":"-"},{}]`: false, `[{"n":2},{}]`: false, `[{},{"n":1}]`: false,
		`[{"slug":"*","o":{"x":null,"y":"#3"}},{}]`: true, `[{"o":{"x":"*"}},{}]`: false, `[{"o":{"y":"#2"}},{}]`: false, `[{"o":{"y":[1,2]}},{}]`: false,
		"Link: <http://a>...\n[{},\n{}]\n\"slug\"": true, "[{},{}]\n=x": false,
	} {
		if got := ResponseDifferences(w, 200, want); (got == "") != matches {
			t.Errorf("%s: got %q", want, got)
		}
	}
	if ResponseDifferences(w, 201, "") == "" {
		t.Error("another status is no difference")
	}
}
