package service

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestObjectsKeepTheOrderOfMembers(t *testing.T) {
	got := string(encode(object{{"b", 1}, {"a", object{{"z", "<&>"}, {"y", nil}}}, {"c", []int{1, 2}}}))
	if want := `{"b":1,"a":{"z":"<&>","y":null},"c":[1,2]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestEncodeMatchesTheStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, number, list := rapid.String().Draw(t, "text"), rapid.Int32().Draw(t, "number"), rapid.SliceOf(rapid.String()).Draw(t, "list")
		written := encode(object{{text, []object{{{"s", text}}, {}}}, {"other " + text, list}, {"n", int(number)}, {"t", true}, {"z", nil}})
		var got any
		if err := json.Unmarshal(written, &got); err != nil {
			t.Fatalf("decode %s: %v", written, err)
		}
		standard, err := json.Marshal(map[string]any{text: []any{map[string]any{"s": text}, map[string]any{}}, "other " + text: list, "n": number, "t": true, "z": nil})
		if err != nil {
			t.Fatal(err)
		}
		var want any
		if err := json.Unmarshal(standard, &want); err != nil {
			t.Fatal(err)
		}
		if text != "n" && text != "t" && text != "z" && !cmp.Equal(want, got) {
			t.Fatalf("got %s, want %s", written, standard)
		}
	})
}
