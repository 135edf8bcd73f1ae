package credential

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/policy"
)

func TestRenamedAccountsAreMerged(t *testing.T) {
	registry := func(key byte, text string) *Registry {
		c := Config{HashKey: []byte{key}}
		for i, entry := range strings.Fields(text) {
			token, account, _ := strings.Cut(entry, ":")
			h := Held{Name: fmt.Sprint(i), Kind: policy.User, Account: account, Token: Secret(token)}
			if token == "app" {
				h.Token, h.Source = "", &Source{app: &App{Installation: 7}}
			}
			c.Held = append(c.Held, h)
		}
		return NewRegistry(c)
	}
	for _, c := range []struct{ name, before, after, want string }{
		{"same names", "t1:a t2 app:x", "t1:a t2 app:x", ""},
		{"name for an unnamed credential", "t1", "t1:a", "t1>a"},
		{"name for a passed credential", "", "t1:a app:x", "installation:7>x t1>a"},
		{"another name", "t1:a t2:a", "t1:b t2:b", "a>b"},
		{"no name", "t1:a t2:b", "t1 t2:b", "a>t1"},
		{"one account after all", "t1:a t2:b", "t1:a t2:a", "b>a"},
		{"two accounts after all", "t1:a t2:a", "t1:b t2:c", ""},
		{"swapped names", "t1:a t2:b", "t1:b t2:a", ""},
		{"name of another account now", "t1:a", "t1:b t2:a", "t2>a"},
		{"removed credentials", "t1:a t2:a", "t2:a", "t1>a"},
		{"removed unnamed credential", "t1", "", ""},
		{"start", "-", "t1:a t2", "t1>a"},
	} {
		var earlier *Registry
		if c.before != "-" {
			earlier = registry(1, c.before)
		}
		next := registry(1, c.after)
		var got []string
		next.MergeRenamed(earlier, func(from, into string, _ policy.CallerKind) {
			got = append(got, from+">"+into)
		})
		slices.Sort(got)
		names := strings.NewReplacer(next.hash("t1"), "t1", next.hash("t2"), "t2")
		all := names.Replace(strings.Join(got, " "))
		failIf(t, strings.Join(slices.Sorted(slices.Values(strings.Fields(all))), " ") != c.want, "%s: merged %q, want %q", c.name, all, c.want)
	}
	stored := []string{"user t1 a", "user t1 old", "user t2 b", "user t3 c", "user t3 t3", "installation installation:7 x", "", "user"}
	for _, c := range []struct{ after, want string }{
		{"t1:a t2:b t3:c app:x", "old>a t3>c"},
		{"t1:b t2:a t3", "c>t3 old>b installation:7>x"},
		{"t1:new t2:new t3:c", "a>new b>new installation:7>x old>new t3>c"},
		{"t2:b app:y", "t1>a t1>old t3>c x>y"},
	} {
		next := registry(1, c.after)
		names := []string{"t1", next.hash("t1"), "t2", next.hash("t2"), "t3", next.hash("t3")}
		back := strings.NewReplacer(names[1], names[0], names[3], names[2], names[5], names[4])
		var texts, got []string
		for _, text := range stored {
			texts = append(texts, strings.NewReplacer(names...).Replace(text))
		}
		next.MergeStored(texts, func(from, into string, _ policy.CallerKind) { got = append(got, back.Replace(from+">"+into)) })
		slices.Sort(got)
		want := strings.Fields(c.want)
		slices.Sort(want)
		failIf(t, !slices.Equal(got, want), "stored names, then %s: merged %q, want %q", c.after, got, want)
	}
	merged := ""
	next, earlier := registry(2, "t1 t2:a"), registry(1, "t1 t2:a")
	next.MergeRenamed(earlier, func(from, into string, _ policy.CallerKind) { merged += from + ">" + into })
	want := earlier.hash("t1") + ">" + next.hash("t1")
	failIf(t, merged != want, "another hash key: merged %q, want %q", merged, want)
}
