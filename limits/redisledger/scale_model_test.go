package redisledger

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// Results of BenchmarkRedis and BenchmarkScale: CPU time of Redis in microseconds, and memory in bytes.
const (
	costRequest   = 230 // admit and settle
	costHeartbeat = 130 // heartbeat of an account
	costRead      = 130 // reading an account
	costIndex     = 19  // index entry of an account
	costRegister  = 87  // registration of a replica
	costList      = 154 // listing a thousand accounts
	costRestore   = 180 // restore of an account
	keepAccount   = 1050
	keepReplica   = 80 // for each replica that used the account
	keepEntry     = 2 * 24
	keepIndexed   = 130 // entry in the index
)

// fleet describes replicas and accounts. The load of accounts follows Zipf's law, up to the limit of the upstream.
type fleet struct {
	replicas, accounts int
	rate               float64 // mean requests of an account per second
	sticky             bool    // each account uses one replica
}

const (
	zipf = 1.1
	// maxRate is the rate limit of an account: 900 points a minute.
	maxRate = 900.0 / 60
	// maxLoad is the part of a CPU that a shard may use. The remaining part is for peaks.
	maxLoad = 0.5
)

// demand is the load of one minute.
type demand struct {
	fleet
	slots             [16384]struct{ requests, accounts, bytes float64 }
	hottest           float64 // fraction of the requests that belong to the busiest account
	total             float64 // requests per second
	heartbeats, index float64 // per second, of all replicas
	pairs, inUse      float64 // sum of local accounts of all replicas after an hour; accounts in use by the busiest replica
	spread            float64 // mean number of replicas that an account uses
	reads, shared     float64 // accounts read per second; µs per second for the shared keys
}

// minute simulates one minute of a fleet.
func (f fleet) minute(seed uint64) *demand {
	rng := rand.New(rand.NewPCG(seed, 1))
	d := &demand{fleet: f}
	sum := 0.0
	for i := range f.accounts {
		sum += math.Pow(float64(i+1), -zipf)
	}
	last, inUse := make([]int, f.replicas), make([]float64, f.replicas) // last account and number of accounts of each replica
	r := float64(f.replicas)
	for i := range f.accounts {
		rate := min(maxRate, f.rate*float64(f.accounts)*math.Pow(float64(i+1), -zipf)/sum)
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
		spread := func(seconds float64) float64 { // expected number of replicas
			if f.sticky {
				return 1 - math.Exp(-rate*seconds)
			}
			return r * (1 - math.Exp(-rate*seconds/r))
		}
		slot := &d.slots[slotOf(accountOf(i))]
		slot.requests += float64(n) / 60
		slot.accounts++
		slot.bytes += keepAccount + keepReplica*spread(7200) + keepEntry*float64(min(n, 257))
		d.total += float64(n) / 60
		d.hottest = max(d.hottest, float64(n)/60)
		d.pairs += spread(3600)
		d.spread += spread(7200) / float64(f.accounts)
	}
	d.hottest /= d.total
	for _, n := range inUse {
		bound := float64(heartbeatAccounts) / heartbeatInterval.Seconds()
		d.heartbeats += min(n/heartbeatInterval.Seconds(), bound)
		d.index += min(n/indexInterval.Seconds(), bound)
		d.inUse = max(d.inUse, n)
	}
	d.reads = r * float64(min(f.accounts, 1000)) / 10
	d.shared = r*costRegister/heartbeatInterval.Seconds() + r*costList/10 + d.index*costIndex
	return d
}

// slotOf returns the slot of an account in Redis Cluster: the CRC16 of its hash tag.
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

// shardLoad is the load of the busiest shard.
type shardLoad struct{ requests, load, bytes float64 }

// busiest returns the load of the busiest shard for a number of shards. One shard also stores the shared keys.
func (d *demand) busiest(shards int) (s shardLoad) {
	each := make([]shardLoad, shards)
	home := slotOfTag("weir") * shards / 16384
	for i, slot := range d.slots {
		e := &each[i*shards/16384]
		part := slot.accounts / float64(d.accounts)
		e.requests += slot.requests
		e.bytes += slot.bytes
		e.load += slot.requests*costRequest + part*(d.heartbeats*costHeartbeat+d.reads*costRead)
	}
	each[home].load += d.shared
	each[home].bytes += float64(d.accounts) * keepIndexed
	for _, e := range each {
		s.requests, s.load, s.bytes = max(s.requests, e.requests), max(s.load, e.load/1e6), max(s.bytes, e.bytes)
	}
	return s
}

// shardsNeeded returns the number of shards that keeps the load below maxLoad. It returns 0 if the shared keys alone
// exceed maxLoad.
func (d *demand) shardsNeeded() int {
	for shards := 1; shards <= 4096; shards++ {
		if d.busiest(shards).load <= maxLoad {
			return shards
		}
		if d.shared/1e6 > maxLoad {
			return 0
		}
	}
	return 0
}

// restores returns the duration of restores into an empty Redis, and the time for which accounts grant nothing.
func (d *demand) restores(shards int) (restore, relearning time.Duration) {
	l := &Ledger{indexed: int64(d.accounts)}
	l.replicas.Store(int64(d.replicas))
	return time.Duration(d.pairs*costRestore/float64(shards)) * time.Microsecond, l.relearning()
}

// fleets returns fleets of all sizes. In each size, accounts use all replicas or one replica.
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

// TestFleetModel logs the Redis resources that fleets of up to WEIR_ACCOUNTS accounts need.
func TestFleetModel(t *testing.T) {
	slot := slotOfTag("123456789")
	stopIf(t, slot != 0x31c3, "got the slot %#x, want 0x31c3", slot)
	most := testservers.Setting(t, "WEIR_ACCOUNTS", 20_000)
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "replicas\taccounts\tat\trequests/s\thottest\theartbeats/s\treads/s\tindex/s\tshared\tcores\tshards\trequests/s each\tmemory each\tKB/account\trestore\trelearning\t")
	for _, f := range fleets() {
		if f.accounts > most {
			continue
		}
		d := f.minute(1)
		d.check(t)
		shards := d.shardsNeeded()
		s := d.busiest(max(1, shards))
		restore, relearning := d.restores(max(1, shards))
		at := map[bool]string{false: "any", true: "one"}[f.sticky]
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%.0f\t%.2f %%\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%d\t%.0f\t%.0f MB\t%.1f\t%.0f s\t%.1f s\t\n", f.replicas, f.accounts, at, d.total, 100*d.hottest,
			d.heartbeats, d.reads, d.index, d.shared/1e6, d.busiest(1).load, shards, s.requests, s.bytes/1e6, d.busiest(1).bytes/1e3/float64(f.accounts), restore.Seconds(), relearning.Seconds())
	}
	_ = w.Flush()
	t.Log("\n" + out.String())
}

// check verifies bounds of the model.
func (d *demand) check(t *testing.T) {
	t.Helper()
	single, many, indexed := d.busiest(1), d.busiest(16), float64(d.accounts)*keepIndexed
	failIf(t, math.Abs(single.requests-d.total) > 1e-6*d.total, "%+v: slots have %f requests of %f", d.fleet, single.requests, d.total)
	top := d.hottest * d.total
	failIf(t, top > maxRate+1.0/60, "%+v: an account has %f requests per second", d.fleet, top)
	bound := 200 * float64(d.replicas)
	failIf(t, d.heartbeats > bound || d.index > bound, "%+v: %f heartbeats and %f index entries per second", d.fleet, d.heartbeats, d.index)
	failIf(t, d.accounts >= 20_000 && (many.requests > d.total/16*2 || many.bytes-indexed > (single.bytes-indexed)/16*1.5), "%+v: one of 16 shards has %f requests of %f, %f bytes of %f", d.fleet, many.requests, d.total, many.bytes, single.bytes)
	failIf(t, d.sticky && d.inUse > 3*float64(d.accounts)/float64(d.replicas)+20, "%+v: a replica has %f accounts", d.fleet, d.inUse)
}
