package limits

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// TestShiftMovesEveryTime sets every number of a cool-down. All numbers except those that are no times must move.
func TestShiftMovesEveryTime(t *testing.T) {
	noTimes := []string{"Errors", "Ceiling", "FailedProbes", "Allowances.Parts"}
	c := cooldown{Allowances: map[string]allowance{"points:op": {}}}
	s := c.Allowances["points:op"]
	fields := func(name string, v reflect.Value, each func(name string, v reflect.Value)) {
		for field, value := range v.Fields() {
			if field.IsExported() && value.Kind() == reflect.Int64 {
				each(name+field.Name, value)
			}
		}
	}
	all := func(each func(name string, v reflect.Value)) {
		fields("", reflect.ValueOf(&c).Elem(), each)
		fields("Allowances.", reflect.ValueOf(&s).Elem(), each)
	}
	all(func(_ string, v reflect.Value) { v.SetInt(1000) })
	c.Allowances["points:op"] = s
	c.shift(7)
	s = c.Allowances["points:op"]
	all(func(name string, v reflect.Value) {
		want := int64(1007)
		if slices.Contains(noTimes, name) {
			want = 1000
		}
		failIf(t, v.Int() != want, "%s: got %d, want %d", name, v.Int(), want)
	})
	c = cooldown{}
	c.shift(7)
	failIf(t, !reflect.DeepEqual(c, cooldown{}), "a time that is not set was shifted: %+v", c)
}

// TestAllowancesAreBounded lowers the allowances of many logs.
func TestAllowancesAreBounded(t *testing.T) {
	var c cooldown
	for i := range int64(3 * maxAllowances) {
		key := fmt.Sprint("points:", i)
		for range 2 {
			c.learn([]logUse{{key, 90, 100, 60 * second}}, 0, i*second+1)
		}
		got := c.allowed(key, 1000)
		stopIf(t, got != 720, "%s: got %d of 1000, want 720", key, got)
	}
	failIf(t, len(c.Allowances) != maxAllowances || c.allowed(fmt.Sprint("points:", 2*maxAllowances), 1000) != 720, "%d allowances, want the last %d", len(c.Allowances), maxAllowances)
}

// A ceiling that reaches the documented limit has no effect.
func TestCeilingEndsAtTheDocumentedLimit(t *testing.T) {
	c := cooldown{Ceiling: 8}
	for i, want := range []int64{9, 0, 0} {
		c.granted(1, int64(i+1)*raiseAfter, 10, 10)
		failIf(t, c.Ceiling != want, "after %d grants: ceiling %d, want %d", i+1, c.Ceiling, want)
	}
}

// TestCalmCooldownNeverChanges tries all states of a cool-down in which each number is zero or 1000.
func TestCalmCooldownNeverChanges(t *testing.T) {
	for state := range int64(1 << 11) {
		next := func() int64 {
			bit := state & 1
			state >>= 1
			return 1000 * bit
		}
		c := cooldown{
			pause:   pause{Until: next(), LastError: next(), Errors: next()},
			Probing: next() != 0, SlowStart: next(), Ceiling: next(), Raised: next(), FailedProbes: next(), Closed: next(),
		}
		if next() != 0 {
			c.setAllowance("points:op", leastAllowance, 0)
		}
		changed := c.clone()
		changed.granted(1, 2*allowanceHold, next(), 100)
		changed.succeeded(1, 2*allowanceHold)
		failIf(t, c.calm() && !changed.equal(&c), "a calm cool-down changed from %+v to %+v", c, changed)
	}
}
