package redisledger

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

// TestScriptDividesLikeTheTable compares divide.lua with the table that the function in Go follows.
func TestScriptDividesLikeTheTable(t *testing.T) {
	text := testservers.Must(os.ReadFile("../testdata/divisions.json"))
	var cases []struct{ Division, Verdict json.RawMessage }
	noError(t, json.Unmarshal(text, &cases))
	script := redis.NewScript(source("divide.lua") + `
return cjson.encode(divide(cjson.decode(ARGV[1])))`)
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	if testservers.HasRedis() {
		client = newDatabase(t).client(t)
	}
	t.Cleanup(func() { _ = client.Close() })
	fields := func(text string) (v map[string]any) {
		noError(t, json.Unmarshal([]byte(text), &v))
		return v
	}
	for i, c := range cases {
		reply, err := script.Run(t.Context(), client, nil, string(c.Division)).Text()
		noError(t, err)
		got, want := fields(reply), fields(string(c.Verdict))
		for name := range want {
			if got[name] != want[name] || len(got) != len(want) {
				t.Errorf("case %d: %s: got %s, want %s", i, c.Division, reply, c.Verdict)
				break
			}
		}
	}
	failIf(t, len(cases) < 300, "the table has %d cases, want at least 300", len(cases))
}
