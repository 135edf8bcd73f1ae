package testservers

import (
	"encoding/json"
	"testing"
)

func TestSchemaDifferencesReportsEachMember(t *testing.T) {
	for _, c := range []struct{ name, schema, object, want string }{
		{"all members", "id:int name:string", `{"name":"a","id":1}`, ""},
		{"null instead of an object", "id:int name:string", `null`, "id is missing\nname is missing"},
		{"a missing member", "id:int name:string", `{"id":1}`, "name is missing"},
		{"additional members", "id:int", `{"id":1,"size":2,"age":3}`, "age is not in the documents\nsize is not in the documents"},
		{"a number as a string", "id:int", `{"id":"1"}`, `id is "1", want int`},
		{"a fraction", "id:int score:number", `{"id":1.5,"score":1.5}`, `id is 1.5, want int`},
		{"a bool as a string", "private:bool", `{"private":"true"}`, `private is "true", want bool`},
		{"null", "name:string", `{"name":null}`, `name is null, want string`},
		{"null for a nullable type", "name:string? labels:[]string?", `{"name":null,"labels":null}`, ""},
		{"a wrong value for a nullable type", "name:string?", `{"name":3}`, `name is 3, want string?`},
		{"timestamps", "a:time b:time c:time", `{"a":"2000-01-01T00:00:00Z","b":"2000-01-01T00:00:00+00:00","c":""}`,
			"b is \"2000-01-01T00:00:00+00:00\", want time\nc is \"\", want time"},
		{"arrays", "a:[]string b:[]string c:[]string", `{"a":[],"b":["x",1],"c":{}}`, "b is [\"x\",1], want []string\nc is {}, want []string"},
		{"objects", "a:{} b:{} c:[]{}", `{"a":{},"b":[],"c":[{},null]}`, "b is [], want {}\nc is [{},null], want []{}"},
		{"members without a type", "a b", `{"a":null,"b":[1]}`, ""},
	} {
		var object map[string]any
		if err := json.Unmarshal([]byte(c.object), &object); err != nil {
			t.Fatal(err)
		}
		if got := SchemaDifferences(c.schema, object); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.name, got, c.want)
		}
	}
}
