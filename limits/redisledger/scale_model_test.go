package redisledger

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// What BenchmarkRedis and the BenchmarkScale… have measured: Redis's processor time, in
// microseconds, and its memory, in bytes.
const (
	costRequest  = 230 // admit and settle
	costBeat     = 130 // an account brought up to date
	costLook     = 130 // an account read for its replica's history
	costIndex    = 19  // an account entered into the index
	costRegister = 87  // a replica registered
	costList     = 154 // a thousand names of the index
	costRestore  = 180 // an account written again
	keepAccount  = 1050
	keepReplica  = 80 // for each replica that has met the account
	keepEntry    = 2 * 24
	keepIndexed  = 130 // the account's name in the index
)

// fleet is replicas, and accounts that ask them: the first the most, the next ones less
// by Zipf's law, none more than the API lets it.
type fleet struct {
	replicas, accounts int
	rate               float64 // requests of an account in a second, the mean
	sticky             bool    // whether each account has one replica
}

const (
	zipf = 1.1
	// mostOf is what the API lets an account do in a second for long: 900 points a minute.
	mostOf = 900.0 / 60
	// busy is how much of a processor a shard may use: the rest is for peaks.
	busy = 0.5
)

// demand is what came of a minute.
type demand struct {
	fleet
	slots         [16384]struct{ requests, accounts, bytes float64 }
	hottest       float64 // of all requests
	total         float64 // requests in a second
	beats, index  float64 // in a second, of all replicas
	pairs, inUse  float64 // accounts that a replica knows after an hour, summed; accounts in use by the busiest
	met           float64 // replicas that an account has met, the mean
	looks, shared float64 // accounts read in a second; µs a second where what is shared is kept
}

// minute draws one minute of a fleet.
func (f fleet) minute(seed uint64) *demand {
	rng := rand.New(rand.NewPCG(seed, 1))
	d := &demand{fleet: f}
	sum := 0.0
	for i := range f.accounts {
		sum += math.Pow(float64(i+1), -zipf)
	}
	last, inUse := make([]int, f.replicas), make([]float64, f.replicas) // the account that a replica has met last; how many
	r := float64(f.replicas)
	for i := range f.accounts {
		rate := min(mostOf, f.rate*float64(f.accounts)*math.Pow(float64(i+1), -zipf)/sum)
		n := int(60*rate + rng.Float64())
		own := rng.IntN(f.replicas)
		for range n {
			at := own
			if !f.sticky {
				at = rng.IntN(f.replicas)
			}
			if last[at] != i+1 {
				last[at] = i + 1
				inUse[at]++
			}
		}
		met := func(seconds float64) float64 { // replicas, in so long
			if f.sticky {
				return 1 - math.Exp(-rate*seconds)
			}
			return r * (1 - math.Exp(-rate*seconds/r))
		}
		slot := &d.slots[slotOf(accountOf(i))]
		slot.requests += float64(n) / 60
		slot.accounts++
		slot.bytes += keepAccount + keepReplica*met(7200) + keepEntry*float64(min(n, 257))
		d.total += float64(n) / 60
		d.hottest = max(d.hottest, float64(n)/60)
		d.pairs += met(3600)
		d.met += met(7200) / float64(f.accounts)
	}
	d.hottest /= d.total
	for _, n := range inUse {
		turns := float64(heartbeatAccounts) / heartbeatInterval.Seconds()
		d.beats += min(n/heartbeatInterval.Seconds(), turns)
		d.index += min(n/indexInterval.Seconds(), turns)
		d.inUse = max(d.inUse, n)
	}
	d.looks = r * float64(min(f.accounts, 1000)) / 10
	d.shared = r*costRegister/heartbeatInterval.Seconds() + r*costList/10 + d.index*costIndex
	return d
}

// slotOf is where Redis Cluster keeps an account (CRC16 of what is between the braces).
func slotOf(account string) int {
	_, tag, _ := strings.Cut((&Ledger{}).keysOf(account)[0], "{")
	tag, _, _ = strings.Cut(tag, "}")
	return slotOfTag(tag)
}

func slotOfTag(tag string) int {
	crc := uint16(0)
	for _, c := range []byte(tag) {
		crc ^= uint16(c) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc % 16384)
}

// shard is the busiest of so many.
type shard struct{ requests, load, bytes float64 }

// over is the busiest of so many shards; what is shared is kept by one of them.
func (d *demand) over(shards int) (s shard) {
	each := make([]shard, shards)
	home := slotOfTag("weir") * shards / 16384
	for i, slot := range d.slots {
		e := &each[i*shards/16384]
		part := slot.accounts / float64(d.accounts)
		e.requests += slot.requests
		e.bytes += slot.bytes
		e.load += slot.requests*costRequest + part*(d.beats*costBeat+d.looks*costLook)
	}
	each[home].load += d.shared
	each[home].bytes += float64(d.accounts) * keepIndexed
	for _, e := range each {
		s.requests, s.load, s.bytes = max(s.requests, e.requests), max(s.load, e.load/1e6), max(s.bytes, e.bytes)
	}
	return s
}

// wanted is how many shards keep the busiest of them below busy; 0 when none do, because
// what is shared is too much for one.
func (d *demand) wanted() int {
	for shards := 1; shards <= 4096; shards++ {
		if d.over(shards).load <= busy {
			return shards
		}
		if d.shared/1e6 > busy {
			return 0
		}
	}
	return 0
}

// again is how long it takes until an empty Redis of so many shards has been told all,
// in seconds of its processors; learns, how long accounts grant nothing meanwhile.
func (d *demand) again(shards int) (again, learns time.Duration) {
	l := &Ledger{indexed: int64(d.accounts)}
	l.replicas.Store(int64(d.replicas))
	return time.Duration(d.pairs*costRestore/float64(shards)) * time.Microsecond, l.relearning()
}

// fleets are all sizes, each with requests that go to any replica, and with accounts that
// have one; and parts that fifty of make the largest.
func fleets() (list []fleet) {
	for _, accounts := range []int{1000, 100_000, 1_000_000} {
		for _, replicas := range []int{1, 10, 100, 1000} {
			list = append(list, fleet{replicas: replicas, accounts: accounts})
			if replicas > 1 {
				list = append(list, fleet{replicas: replicas, accounts: accounts, sticky: true})
			}
		}
	}
	list = append(list, fleet{replicas: 4, accounts: 20_000}, fleet{replicas: 20, accounts: 20_000})
	for i := range list {
		list[i].rate = 0.1
	}
	return list
}

// TestFleets draws a minute of fleets, and tells what Redis they want: of up to
// WEIR_ACCOUNTS accounts.
func TestFleets(t *testing.T) {
	if slot := slotOfTag("123456789"); slot != 0x31c3 {
		t.Fatalf("slot %#x", slot)
	}
	most := setting(t, "WEIR_ACCOUNTS", 20_000)
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "replicas\taccounts\tat\trequests/s\thottest\tbeats/s\tlooks/s\tindex/s\tshared\tcores\tshards\trequests/s each\tmemory each\tKB/account\tagain\tlearns\t")
	for _, f := range fleets() {
		if f.accounts > most {
			continue
		}
		d := f.minute(1)
		d.check(t)
		shards := d.wanted()
		s := d.over(max(1, shards))
		again, learns := d.again(max(1, shards))
		at := map[bool]string{false: "any", true: "one"}[f.sticky]
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%.0f\t%.2f %%\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%d\t%.0f\t%.0f MB\t%.1f\t%.0f s\t%.1f s\t\n", f.replicas, f.accounts, at, d.total, 100*d.hottest,
			d.beats, d.looks, d.index, d.shared/1e6, d.over(1).load, shards, s.requests, s.bytes/1e6, d.over(1).bytes/1e3/float64(f.accounts), again.Seconds(), learns.Seconds())
	}
	_ = w.Flush()
	t.Log("\n" + out.String())
}

// check holds a minute against what must be so.
func (d *demand) check(t *testing.T) {
	t.Helper()
	one, many, indexed := d.over(1), d.over(16), float64(d.accounts)*keepIndexed
	if math.Abs(one.requests-d.total) > 1e-6*d.total {
		t.Errorf("%+v: slots have %f requests, of %f", d.fleet, one.requests, d.total)
	}
	if top := d.hottest * d.total; top > mostOf+1.0/60 {
		t.Errorf("%+v: an account makes %f requests a second", d.fleet, top)
	}
	if turns := 200 * float64(d.replicas); d.beats > turns || d.index > turns {
		t.Errorf("%+v: %f beats and %f entries of the index a second", d.fleet, d.beats, d.index)
	}
	if d.accounts >= 20_000 && (many.requests > d.total/16*2 || many.bytes-indexed > (one.bytes-indexed)/16*1.5) {
		t.Errorf("%+v: one of 16 shards has %f requests of %f, %f bytes of %f", d.fleet, many.requests, d.total, many.bytes, one.bytes)
	}
	if d.sticky && d.inUse > 3*float64(d.accounts)/float64(d.replicas)+20 {
		t.Errorf("%+v: a replica has %f accounts", d.fleet, d.inUse)
	}
}
