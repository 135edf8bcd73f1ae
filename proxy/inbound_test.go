package proxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/limits"
)

// inbound lets each address of a world send so many requests a second, and so
// many at once.
func inbound(perSecond, burst int) option {
	return func(c *Config) {
		c.Inbound = &Inbound{}
		c.Inbound.Configure(perSecond, burst)
	}
}

// from asks the gateway from an address; fields are "Name: value".
func (w *world) from(remote, method, target string, fields ...string) got {
	w.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = remote
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	recorder := httptest.NewRecorder()
	w.gateway.ServeHTTP(recorder, r)
	return got{recorder.Result(), recorder.Body.String(), nil}
}

// lets wants the status of one request after the other from an address.
func (w *world) lets(remote string, statuses ...int) {
	w.Helper()
	for i, want := range statuses {
		if r := w.from(remote, "GET", "/user"); r.StatusCode != want {
			w.Errorf("request %d of %s: got %d, want %d", i+1, remote, r.StatusCode, want)
		}
	}
}

func TestAnAddressSendsItsBurstAndThenAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, inbound(2, 3))
		w.lets("192.0.2.1:1000", 200, 200, 200, 429, 429)
		w.lets("192.0.2.2:1000", 200) // another's haste is not its own
		time.Sleep(time.Second)       // as Retry-After said
		w.lets("192.0.2.1:1000", 200, 200, 429)
		time.Sleep(500 * time.Millisecond)
		w.lets("192.0.2.1:1000", 200, 429)
		time.Sleep(time.Hour)
		w.lets("192.0.2.1:1000", 200, 200, 200, 429)
	})
}

func TestOffLetsEverybodyIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, off := range []option{inbound(0, 0), func(*Config) {}} {
			w := newWorld(t, nothing, off)
			for range 50 {
				w.lets("192.0.2.1:1000", 200)
			}
		}
	})
}

func TestRefusalOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		identified := 0
		w := newWorld(t, nothing, inbound(1, 1), func(c *Config) {
			c.RefusalStatus = http.StatusForbidden // is about the upstream's limits
			c.Identify = func(r *http.Request) (Identity, error) { identified++; return identifyByToken(r) }
		})
		w.lets("192.0.2.1:1000", 200)
		r := w.from("192.0.2.1:1001", "GET", "/user", "Authorization: Bearer a")
		w.refused(r, 429, "Too Many Requests: this address sends faster than the gateway lets one address send")
		w.want("Retry-After", r.Header.Get("Retry-After"), "1")
		w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; detail=inbound")
		w.want("Cache-Control", r.Header.Get("Cache-Control"), "no-store")
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Ratelimit-") {
				t.Errorf("%s tells of a budget that has nothing to do with it", name)
			}
		}
		if limits.ClassifyLimit(r.StatusCode, r.Header, []byte(r.body)) == limits.PrimaryLimit {
			t.Error("a client would take it for the API's primary limit and wait for its reset")
		}
		w.want("identified", identified, 1)
		w.want("upstream saw", w.upstreamSaw(), 1)
		last := w.gateway.Recent()[0]
		w.want("the operator learns who", last.Error, "limits.inbound: 192.0.2.1 sends too fast")
		w.want("in the access line", last.Status, 429)
	})
}

func TestNothingIsCheaperThanTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, inbound(1, 3))
		// What is refused for another reason counts, and is refused for this
		// one first.
		for _, target := range []string{"/_weir/none", "/repos//widgets", "/user?q=" + strings.Repeat("a", maxTarget)} {
			if r := w.from("192.0.2.1:1000", "GET", target); r.StatusCode == 429 {
				t.Errorf("%.20s: %d", target, r.StatusCode)
			}
		}
		for _, method := range []string{"GET", "HEAD", "TRACE", "POST"} {
			r := w.from("192.0.2.1:1000", method, "/_weir/none")
			w.want(method, r.StatusCode, 429)
			if method == "HEAD" {
				w.want("HEAD has no body", r.body, "")
			}
		}
	})
}

// TestAttack14ForwardedFieldsChangeNoAddress: neither can a client be many by
// what it writes, nor can it spend what another may send.
func TestAttack14ForwardedFieldsChangeNoAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{
			"X-Forwarded-For", "X_forwarded_for", "Forwarded", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip",
			"Cf-Connecting-Ip", "X-Original-Forwarded-For", "X-Remote-Addr", "Remote-Addr", "Via",
		}
		w := newWorld(t, nothing, inbound(1, len(names)))
		value := func(name, ip string) string {
			if name == "Forwarded" {
				return "for=" + ip
			}
			return ip
		}
		for i, name := range names {
			ip := fmt.Sprintf("198.51.100.%d", i)
			r := w.from("192.0.2.1:1000", "GET", "/user", name+": "+value(name, ip))
			w.want(name+" within the burst", r.StatusCode, 200)
		}
		for i, name := range names {
			ip := fmt.Sprintf("203.0.113.%d", i)
			r := w.from("192.0.2.1:1000", "GET", "/user", name+": "+value(name, ip), "Connection: "+name)
			w.want(name+" over the burst", r.StatusCode, 429)
			w.lets(ip+":1000", 200) // it was not charged
		}
	})
}

func TestAttack14ThePortIsNoAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, inbound(1, 2))
		w.lets("192.0.2.1:1000", 200)
		w.lets("192.0.2.1:1001", 200)
		w.lets("192.0.2.1:1002", 429)
		w.lets("192.0.2.2:1000", 200)
	})
}

func TestAttack14IPv4MappedIsIPv4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, inbound(1, 3))
		w.lets("192.0.2.1:1000", 200)
		w.lets("[::ffff:192.0.2.1]:1000", 200)
		w.lets("[::ffff:c000:201]:1000", 200)
		w.lets("192.0.2.1:1000", 429)
		w.lets("[::ffff:192.0.2.1]:1000", 429)
		w.lets("[::ffff:192.0.2.2]:1000", 200) // a neighbour, not of one /64
	})
}

func TestAttack14IPv6CountsByNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, inbound(1, 4))
		for i := range 4 {
			w.lets(fmt.Sprintf("[2001:db8:1:2:%x::%x]:1000", i*i, i), 200)
		}
		for i := range 100 {
			w.lets(fmt.Sprintf("[2001:db8:1:2:%x:1:2:3]:1000", i), 429)
		}
		w.lets("[2001:db8:1:3::1]:1000", 200)
		w.lets("[fe80::1%eth0]:1000", 200, 200)
		w.lets("[fe80::2%eth1]:1000", 200, 200, 429)
	})
}

// TestAttack14WithoutAnIP: connections that have none cannot be told apart.
func TestAttack14WithoutAnIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nothing, inbound(1, 2))
		w.lets("@", 200)
		w.lets("", 200)
		w.lets("/run/weir.sock", 429)
		w.lets("192.0.2.1:1000", 200)
	})
}

// address is the n-th of many.
func address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func TestTheTableIsBounded(t *testing.T) {
	in := &Inbound{}
	in.Configure(1, 1)
	now := time.Now()
	first, second := address(0), address(1)
	for n := range maxAddresses {
		in.allow(address(n), now)
	}
	if in.allow(first, now) || len(in.known) != maxAddresses {
		t.Errorf("%d addresses, and the first was forgotten", len(in.known))
	}
	in.allow(address(maxAddresses), now)
	if len(in.known) != maxAddresses || in.order.Len() != maxAddresses {
		t.Errorf("%d addresses, %d in order", len(in.known), in.order.Len())
	}
	if in.allow(first, now) {
		t.Error("an address that was just heard of was forgotten")
	}
	if !in.allow(second, now) {
		t.Error("the least recently used address was not forgotten")
	}
}

func TestIdleAddressesAreForgotten(t *testing.T) {
	in := &Inbound{}
	in.Configure(1, 100)
	now := time.Now()
	for n := range 1000 {
		in.allow(address(n), now)
	}
	for range 99 {
		in.allow(address(0), now) // its bucket takes longer to fill than a minute
	}
	soon := now.Add(idle - time.Nanosecond)
	in.allow(address(1000), soon)
	if len(in.known) != 1001 {
		t.Errorf("%d addresses before a minute", len(in.known))
	}
	late := now.Add(idle + time.Second)
	in.allow(address(1000), late)
	if len(in.known) != 999 {
		t.Errorf("one request paid for dropping %d", 1001-len(in.known))
	}
	for range 500 {
		in.allow(address(1000), late)
	}
	if len(in.known) != 2 || in.known[address(0)] == nil {
		t.Errorf("%d addresses after a minute", len(in.known))
	}
	in.allow(address(1000), late.Add(time.Minute))
	if len(in.known) != 1 {
		t.Errorf("%d addresses when all buckets are full", len(in.known))
	}
}

func TestConfigureKeepsWhatAddressesHaveSent(t *testing.T) {
	in := &Inbound{}
	now := time.Now()
	a, b := address(1), address(2)
	allowed := func(a netip.Addr) (n int) {
		for in.allow(a, now) {
			n++
		}
		return n
	}
	want := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d requests, want %d", what, got, want)
		}
	}
	in.Configure(2, 10)
	want("burst", allowed(a), 10)
	in.Configure(2, 10)
	want("same numbers again", allowed(a), 0)
	in.Configure(4, 20)
	want("larger burst", allowed(a), 0)
	now = now.Add(time.Second)
	want("new rate", allowed(a), 4)
	in.allow(b, now)
	in.Configure(4, 5)
	want("smaller burst, of what was left", allowed(b), 5)
	in.Configure(0, 0)
	for range 100 {
		if !in.allow(a, now) {
			t.Fatal("switched off, and refused")
		}
	}
	want("what is kept while it is off", len(in.known)+in.order.Len(), 0)
	in.Configure(4, 5)
	want("switched on again", allowed(a), 5)
}

// TestNoWindowHoldsMoreThanBurstAndRate: whatever the order in which requests
// come, and however their clocks differ.
func TestNoWindowHoldsMoreThanBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 20).Draw(t, "rate"), rapid.IntRange(1, 20).Draw(t, "burst")
		in := &Inbound{}
		in.Configure(perSecond, burst)
		began := time.Now()
		now := began
		let := map[netip.Addr][]time.Time{}
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.IntRange(-50, 200).Draw(t, "milliseconds")) * time.Millisecond)
			a := address(rapid.IntRange(0, 2).Draw(t, "address"))
			if in.allow(a, now) {
				let[a] = append(let[a], in.latest)
			} else if len(let[a]) == 0 {
				t.Fatalf("%s was refused, and had sent nothing", a)
			}
		}
		for a, times := range let {
			for i := range times {
				for j := i; j < len(times); j++ {
					most := float64(burst) + times[j].Sub(times[i]).Seconds()*float64(perSecond)
					if n := j - i + 1; float64(n) > most+1e-6 {
						t.Fatalf("%s sent %d requests within %s, at most %.2f are allowed", a, n, times[j].Sub(times[i]), most)
					}
				}
			}
		}
	})
}

func TestManyAtOnceGetOneBurst(t *testing.T) {
	in := &Inbound{}
	in.Configure(1, 100)
	now := time.Now()
	var let atomic.Int64
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for n := range 100 {
				if in.allow(address(0), now) {
					let.Add(1)
				}
				in.allow(address(worker*100+n+1), now)
				if n == 50 {
					in.Configure(1, 100)
				}
			}
		})
	}
	group.Wait()
	if let.Load() != 100 {
		t.Errorf("%d requests were let in", let.Load())
	}
}

func TestLettingInAllocatesNothing(t *testing.T) {
	in := &Inbound{}
	in.Configure(1_000_000, 1_000_000)
	now := time.Now()
	for _, remote := range []string{"192.0.2.1:1000", "[2001:db8::1]:1000"} {
		in.allow(counted(netip.MustParseAddrPort(remote).Addr()), now)
		if n := testing.AllocsPerRun(1000, func() { in.allow(counted(netip.MustParseAddrPort(remote).Addr()), now) }); n != 0 {
			t.Errorf("%s: %v allocations", remote, n)
		}
	}
}

func BenchmarkInbound(b *testing.B) {
	for _, remote := range []string{"192.0.2.1:1000", "[2001:db8::1]:1000"} {
		b.Run(remote, func(b *testing.B) {
			in := &Inbound{}
			in.Configure(1_000_000_000, 1_000_000_000)
			now := time.Now()
			for n := range maxAddresses - 1 {
				in.allow(address(n), now)
			}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Nanosecond)
				if !in.allow(counted(netip.MustParseAddrPort(remote).Addr()), now) {
					b.Fatal("refused")
				}
			}
		})
	}
}
