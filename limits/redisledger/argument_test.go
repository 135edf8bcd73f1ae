package redisledger

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

// TestAnArgumentIsJSON compares what scripts are given with what the library writes, but for
// the escapes that only browsers need.
func TestAnArgumentIsJSON(t *testing.T) {
	var value *rapid.Generator[any]
	value = rapid.Custom(func(t *rapid.T) any {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return rapid.Int().Draw(t, "int")
		case 1:
			return rapid.Int64().Draw(t, "int64")
		case 2:
			return rapid.SliceOfN(value, 0, 3).Draw(t, "list")
		case 3:
			return rapid.SampledFrom([]string{"points:repos/get", "content:\x1f", "a\"b\\", "é", "\xff", "<&>"}).Draw(t, "text")
		}
		return rapid.String().Draw(t, "any text")
	})
	rapid.Check(t, func(t *rapid.T) {
		v := value.Draw(t, "value")
		text := appendArgument(nil, v)
		var got, want any
		wanted, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(wanted, &want)
		}
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		again, _ := json.Marshal(got)
		if expected, _ := json.Marshal(want); !bytes.Equal(again, expected) {
			t.Fatalf("%s, want %s", text, wanted)
		}
	})
}
