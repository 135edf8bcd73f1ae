package limits

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// divisions contains cases of the rule that divides a budget, with its verdicts. Package redisledger compares divide.lua with them.
const divisions = "testdata/divisions.json"

var writeDivisions = flag.Bool("write-divisions", false, "write "+divisions)

type divisionCase struct {
	Division division `json:"division"`
	Verdict  verdict  `json:"verdict"`
}

// randomDivision draws a case whose numbers are close to the bounds of the rule.
func randomDivision(rng *rand.Rand) division {
	pick := func(list ...int64) int64 { return list[rng.IntN(len(list))] }
	near := func(n int64) int64 { return max(0, n+pick(-2, -1, 0, 0, 1, 2)) }
	d := division{Now: 1e12 + rng.Int64N(1e9), Limit: pick(0, 1, 2, 30, 80, 99, 100, 500, 900, 5000, 90000), Cost: pick(1, 1, 1, 2, 5, 37)}
	d.Cost = min(d.Cost, max(1, d.Limit))
	d.InUse = min(d.Limit, pick(near(d.Limit/2), near(d.Limit-d.Limit/100-d.Cost), near(d.Limit-d.Limit/100-d.Cost), near(d.Limit), rng.Int64N(d.Limit+1)))
	d.Free = d.Limit - d.InUse + pick(0, 0, 0, 0, 0, -1, -d.Limit, d.Cost)
	if rng.IntN(3) > 0 {
		d.Window = pick(60, 60, 3600) * second
		d.Pace = pick(0, d.Now-second, d.Now+rng.Int64N(20*second), d.Now+paceTolerance+pick(-1, 0, 1), d.Now+d.Window)
		d.Paced = rng.IntN(3) == 0
	}
	if rng.IntN(5) == 0 {
		return d
	}
	d.Share = pick(1, 1, 2, 5, 100)
	if rng.IntN(5) > 1 {
		d.Shares = d.Share + pick(0, 1, 3, 10, 400)
		d.Used = near(nominal(d.Limit, d.Share, d.Shares) - d.Cost)
		d.Free = pick(d.Free, d.Cost+rng.Int64N(d.Limit/reservedParts+1), d.Cost+rng.Int64N(d.Limit/reservedParts+1))
	} else {
		d.Used = rng.Int64N(d.InUse + 1)
		d.Kept = pick(0, near(d.Free-d.Cost), near(d.Free-d.Cost), rng.Int64N(d.Limit+1))
	}
	for range rng.IntN(4) {
		w := waiting{Share: pick(1, 1, 2, 7, 50), Cost: pick(1, 1, 3, 40, 300), Used: rng.Int64N(d.InUse + 1)}
		w.Demand = w.Cost * pick(1, 1, 2, 80)
		d.Waits = append(d.Waits, w)
	}
	if len(d.Waits) > 0 && d.Shares == 0 && rng.IntN(3) == 0 { // the claim needs exactly the part of its client
		tokens, shares := d.Used, d.Share
		for _, w := range d.Waits {
			tokens, shares = tokens+w.Used, shares+w.Share
		}
		d.Kept, d.Free = 0, (d.Used+d.Cost)*shares/d.Share-tokens
	}
	return d
}

// TestDivideDecidesLikeTheTable compares the rule with the table, in which each result is frequent.
func TestDivideDecidesLikeTheTable(t *testing.T) {
	if *writeDivisions {
		rng, lines := rand.New(rand.NewPCG(1, 1)), [][]byte{}
		for range 480 {
			d := randomDivision(rng)
			d.Waits = append([]waiting{}, d.Waits...) // no null
			line, err := json.Marshal(divisionCase{d, d.divide()})
			noError(t, err)
			lines = append(lines, line)
		}
		text := slices.Concat([]byte("[\n"), bytes.Join(lines, []byte(",\n")), []byte("\n]\n"))
		noError(t, os.WriteFile(divisions, text, 0o644))
	}
	text, err := os.ReadFile(divisions)
	noError(t, err)
	var cases []divisionCase
	noError(t, json.Unmarshal(text, &cases))
	counts, fits := map[string]int{}, 0
	for i, c := range cases {
		v := c.Division.divide()
		failIf(t, v != c.Verdict, "case %d: %+v: got %+v, want %+v", i, c.Division, v, c.Verdict)
		for name, is := range map[string]bool{
			"missing": v.Missing > 0, "due": v.Due > 0, "beyond": v.Beyond, "kept": v.Kept, "yields": v.Yields, "pace": v.Pace != c.Division.Pace,
			"yields not": len(c.Division.Waits) > 0 && v.Missing == 0 && !v.Kept && !v.Yields, "reserve": v.Beyond && v.Missing > 0 && v.Missing <= c.Division.Limit/reservedParts,
		} {
			if is {
				counts[name]++
			}
		}
		if v.Missing == 0 && v.Due == 0 && !v.Kept && !v.Yields {
			fits++
		}
	}
	stopIf(t, len(cases) < 300 || fits < 20 || len(counts) < 8, "%d cases, of which %d fit, with the results %v", len(cases), fits, counts)
	for name, n := range counts {
		failIf(t, n < 20, "only %d of %d cases have the result %q", n, len(cases), name)
	}
}
