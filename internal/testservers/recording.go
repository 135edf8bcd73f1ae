package testservers

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

var update = flag.Bool("update", false, "replace the recordings of Redis in testdata")

// A recording is a text file with the data of a Redis server: the commands that write it, one per line, with quoted
// arguments. Recordings in testdata are of released versions, whose format the present code must continue to use.

// CompareFormat compares the data in Redis with a recording: the types and names of the keys, the fields of hashes and
// streams, and the members of values in JSON. decode returns another value as JSON; nil is for JSON only. Values
// themselves, times and identifiers differ. changed are the parts that earlier versions ignore or, after a "-", the beginnings of
// parts that they no longer need. With -update, CompareFormat replaces the recording by the data.
func CompareFormat(t testing.TB, client redis.UniversalClient, path string, decode func(value string) string, changed ...string) {
	t.Helper()
	data := dump(t, client)
	if *update {
		var text strings.Builder
		for _, command := range data {
			for i, argument := range command {
				if i > 0 {
					text.WriteByte(' ')
				}
				text.WriteString(strconv.QuoteToASCII(argument))
			}
			text.WriteByte('\n')
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, got := formatOf(readRecording(t, path), decode), formatOf(data, decode)
	for _, line := range changed {
		if start, removed := strings.CutPrefix(line, "-"); removed {
			maps.DeleteFunc(want, func(line string, _ bool) bool { return strings.HasPrefix(line, start) })
		} else {
			want[line] = true
		}
	}
	for _, line := range slices.Sorted(maps.Keys(want)) {
		if !got[line] {
			t.Errorf("%s: present code does not write %s", path, line)
		}
	}
	for _, line := range slices.Sorted(maps.Keys(got)) {
		if !want[line] {
			t.Errorf("%s: present code also writes %s", path, line)
		}
	}
	if t.Failed() {
		t.Log("replicas of the released version read and write the recorded format: keep it, or follow docs/upgrade.md")
	}
}

// Replay writes the data of a recording to Redis.
func Replay(t testing.TB, client redis.UniversalClient, path string) {
	t.Helper()
	commands := readRecording(t, path)
	_, err := client.Pipelined(context.WithoutCancel(t.Context()), func(p redis.Pipeliner) error {
		for _, command := range commands {
			arguments := make([]any, len(command))
			for i, argument := range command {
				arguments[i] = argument
			}
			p.Do(t.Context(), arguments...)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("replay %s: %v", path, err)
	}
}

func readRecording(t testing.TB, path string) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var command []string
		for rest := strings.TrimSpace(line); rest != ""; rest = strings.TrimSpace(rest) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				t.Fatalf("read recording %s: %q: %v", path, rest, err)
			}
			argument, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("read recording %s: %q: %v", path, rest, err)
			}
			command, rest = append(command, argument), rest[len(quoted):]
		}
		commands = append(commands, command)
	}
	if len(commands) == 0 {
		t.Fatalf("read recording %s: it is empty", path)
	}
	return commands
}

// dump returns the commands that write the data of a server.
func dump(t testing.TB, client redis.UniversalClient) (commands [][]string) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	keys, err := client.Keys(ctx, "weir:*").Result()
	must(err)
	slices.Sort(keys)
	for _, key := range keys {
		kind, err := client.Type(ctx, key).Result()
		must(err)
		switch kind {
		case "string":
			value, err := client.Get(ctx, key).Result()
			must(err)
			commands = append(commands, []string{"SET", key, value})
		case "hash":
			fields, err := client.HGetAll(ctx, key).Result()
			must(err)
			for _, field := range slices.Sorted(maps.Keys(fields)) {
				commands = append(commands, []string{"HSET", key, field, fields[field]})
			}
		case "zset":
			members, err := client.ZRangeWithScores(ctx, key, 0, -1).Result()
			must(err)
			for _, m := range members {
				commands = append(commands, []string{"ZADD", key, strconv.FormatFloat(m.Score, 'f', -1, 64), fmt.Sprint(m.Member)})
			}
		case "stream":
			messages, err := client.XRange(ctx, key, "-", "+").Result()
			must(err)
			for _, m := range messages {
				command := []string{"XADD", key, m.ID}
				for _, field := range slices.Sorted(maps.Keys(m.Values)) {
					command = append(command, field, fmt.Sprint(m.Values[field]))
				}
				commands = append(commands, command)
			}
		default:
			t.Fatalf("%s has the type %s, which recordings do not have", key, kind)
		}
		ttl, err := client.PTTL(ctx, key).Result()
		must(err)
		if ttl <= 0 {
			t.Errorf("%s does not expire", key)
		}
		commands = append(commands, []string{"PEXPIRE", key, strconv.FormatInt(ttl.Milliseconds(), 10)})
	}
	return commands
}

// identifier matches parts of names that differ between recordings: hashes and random texts.
var identifier = regexp.MustCompile(`[0-9a-f]{16,}|[A-Z2-7]{26}`)

// formatOf returns the parts of the data that all recordings of one format have in common.
func formatOf(commands [][]string, decode func(value string) string) map[string]bool {
	format := map[string]bool{}
	add := func(parts ...string) { format[identifier.ReplaceAllString(strings.Join(parts, " "), "*")] = true }
	addValue := func(value string, parts ...string) {
		add(parts...)
		if decode != nil {
			value = cmp.Or(decode(value), value)
		}
		var decoded any
		if json.Unmarshal([]byte(value), &decoded) == nil {
			for name := range membersOf(decoded) {
				add(append(parts, name)...)
			}
		}
	}
	for _, c := range commands {
		switch c[0] {
		case "SET":
			addValue(c[2], c[0], c[1])
		case "HSET":
			addValue(c[3], c[0], c[1], c[2])
		case "XADD":
			for i := 3; i+1 < len(c); i += 2 {
				addValue(c[i+1], c[0], c[1], c[i])
			}
		default:
			add(c[:2]...)
		}
	}
	return format
}

// membersOf returns the paths of all members of the objects in a JSON value.
func membersOf(value any) map[string]bool {
	paths := map[string]bool{}
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			paths["."+name] = true
			for path := range membersOf(member) {
				paths["."+name+path] = true
			}
		}
	case []any:
		for _, element := range value {
			for path := range membersOf(element) {
				paths["[]"+path] = true
			}
		}
	}
	return paths
}
