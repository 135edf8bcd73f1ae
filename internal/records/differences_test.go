package records

import (
	"encoding/json"
	"testing"
)

func TestDifferences(t *testing.T) {
	for _, c := range []struct{ what, record, object, want string }{
		{"as listed", "id:int name:string", `{"name":"a","id":1}`, ""},
		{"no object", "id:int name:string", `null`, "id is missing\nname is missing"},
		{"a member too few", "id:int name:string", `{"id":1}`, "name is missing"},
		{"a member too many", "id:int", `{"id":1,"size":2,"age":3}`, "age is not in the documents\nsize is not in the documents"},
		{"a number as text", "id:int", `{"id":"1"}`, `id is "1", want int`},
		{"a fraction", "id:int score:number", `{"id":1.5,"score":1.5}`, `id is 1.5, want int`},
		{"a truth as text", "private:bool", `{"private":"true"}`, `private is "true", want bool`},
		{"null", "name:string", `{"name":null}`, `name is null, want string`},
		{"null where it may be", "name:string? labels:[]string?", `{"name":null,"labels":null}`, ""},
		{"not null where it may be", "name:string?", `{"name":3}`, `name is 3, want string?`},
		{"timestamps", "a:time b:time c:time", `{"a":"2000-01-01T00:00:00Z","b":"2000-01-01T00:00:00+00:00","c":""}`,
			"b is \"2000-01-01T00:00:00+00:00\", want time\nc is \"\", want time"},
		{"arrays", "a:[]string b:[]string c:[]string", `{"a":[],"b":["x",1],"c":{}}`, "b is [\"x\",1], want []string\nc is {}, want []string"},
		{"objects", "a:{} b:{} c:[]{}", `{"a":{},"b":[],"c":[{},null]}`, "b is [], want {}\nc is [{},null], want []{}"},
		{"no type", "a b", `{"a":null,"b":[1]}`, ""},
	} {
		var object map[string]any
		if err := json.Unmarshal([]byte(c.object), &object); err != nil {
			t.Fatal(err)
		}
		if got := Differences(c.record, object); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.what, got, c.want)
		}
	}
}
