package limits

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// TestTableIsAMap: accounts come, go and are found again as in a map of names.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, model := newTable(), map[string]*account{}
		names := rapid.Custom(func(rt *rapid.T) string { return strconv.Itoa(rapid.IntRange(0, 200).Draw(rt, "name")) })
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			switch name := names.Draw(rt, "of"); rapid.SampledFrom([]string{"add", "add", "add", "forget"}).Draw(rt, "step") {
			case "add":
				model[name] = newAccount(name, policy.User)
				table.add(model[name])
			case "forget":
				last := name[len(name)-1]
				gone := func(a *account) bool { return a.name[len(a.name)-1] == last }
				table.forget(gone)
				maps.DeleteFunc(model, func(_ string, a *account) bool { return gone(a) })
			}
			if got := table.find(names.Draw(rt, "found")); got.account != nil && model[got.account.name] != got.account {
				rt.Fatalf("found %s, which has gone", got.account.name)
			}
			var all []*account
			for p := range table.all() {
				all = append(all, p.account)
			}
			if len(all) != len(model) || table.n != len(model) {
				rt.Fatalf("%d accounts, counted as %d; want %d", len(all), table.n, len(model))
			}
			if free := len(table.places) - len(all); free < len(table.places)/4 {
				rt.Fatalf("of %d places %d are free", len(table.places), free)
			}
			for name, a := range model {
				if table.find(name).account != a || !slices.Contains(all, a) {
					rt.Fatalf("%s is not found", name)
				}
			}
		}
	})
}

// TestTableShrinks: what a crowd took is given back when it has gone.
func TestTableShrinks(t *testing.T) {
	table := newTable()
	for i := range 10_000 {
		table.add(newAccount(strconv.Itoa(i), policy.User))
	}
	table.forget(func(a *account) bool { return a.name != "7" })
	if len(table.places) != fewest || table.find("7").account == nil || table.find("8").account != nil {
		t.Errorf("%d places, 7: %v, 8: %v", len(table.places), table.find("7").account, table.find("8").account)
	}
}

// TestAPlaceIsALine: of 64 bytes, which is what makes it worth its trouble.
func TestAPlaceIsALine(t *testing.T) {
	if size := unsafe.Sizeof(place{}); strconv.IntSize == 64 && size != 64 {
		t.Errorf("%d bytes", size)
	}
}

// TestWhatHasNoRoomIsShownAsItIs: a budget that does not fit beside the account.
func TestWhatHasNoRoomIsShownAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			limit  int
			window time.Duration
		}{{5000, time.Hour}, {math.MaxInt32, time.Hour}, {math.MaxInt, time.Hour}, {5000, time.Hour + time.Millisecond}} {
			rules := Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}
			rules.Primary.Window = c.window
			m := NewMemory(rules)
			o := answer(policy.Core, 0)
			o.Rate = Rate{Limit: c.limit, Used: c.limit - 1, Reset: time.Now().Add(time.Minute), Date: time.Now(), Resource: policy.Core}
			m.spend(t, claim(1, policy.Core), o)
			for range 2 {
				got, _ := m.Budget(t.Context(), "a", policy.User, policy.Core)
				if want, _ := m.accounts.find("a").account.budget(policy.Core, &m.rules, m.now()); got != want || got.Limit != c.limit || got.Remaining != 1 || got.Window != c.window {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
		}
	})
}

// TestWhatIsShownIsOfTheRules: new rules are seen at once, where a budget is theirs and not the
// upstream's.
func TestWhatIsShownIsOfTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}
		m := NewMemory(rules)
		o := answer(policy.Search, 1)
		o.Rate.Limit, o.Rate.Reset = 30, time.Now().Add(2*time.Second)
		m.spend(t, claim(1, policy.Search), o)
		time.Sleep(10 * time.Second)
		m.added = sweepEvery
		m.sweep(m.now()) // the window is over; what was spent within a minute is not
		for _, limit := range []int{30, 100} {
			rules.Search.Authenticated = limit
			m.Configure(rules)
			for range 2 {
				if got, _ := m.Budget(t.Context(), "a", policy.User, policy.Search); got.Limit != limit || got.Used != 1 {
					t.Errorf("of %d: %+v", limit, got)
				}
			}
		}
	})
}
