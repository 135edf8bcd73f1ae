package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

// A response with an earlier request does not replace a newer response, even if the response arrives
// later and the replicas' clocks differ.
func TestLateResponseDoesNotReplaceNewerResponse(t *testing.T) {
	onEach(t, func(f *fleet) {
		for name, offset := range map[string]time.Duration{"clocks agree": 0, "the clock of the newer response is ahead": time.Hour} {
			key, slow, other := cache.NewKey(name), f.open(""), f.open("")
			at := func(d time.Duration, body string) *cache.Entry {
				time.Sleep(time.Millisecond) // each request is later than the one before
				e := fetched(slow.Generation(), body)
				e.Answered = e.Answered.Add(d)
				return e
			}
			older, newer := at(-5*time.Second, "older"), at(offset, "newer")
			check := func(want string) {
				f.Helper()
				for _, r := range []*replica{other, f.open("")} {
					if e, _ := r.Lookup(f.Context(), key, nil); e == nil || string(e.Body) != want {
						f.Errorf("%s: %+v, want %s", name, e, want)
					}
				}
			}
			other.Put(f.Context(), key, newer)
			slow.Put(f.Context(), key, older)
			check("newer")
			slow.Put(f.Context(), key, at(time.Second, "newest")) // the request time is now
			if e, _ := f.open("").Lookup(f.Context(), key, nil); e == nil || string(e.Body) != "newest" {
				f.Errorf("%s: %+v, want the newest", name, e)
			}
		}
	})
}

// An entry without Vary is ignored once a newer response to the same question has Vary.
func TestNewerEntryWithVaryHidesEntryWithoutVary(t *testing.T) {
	onEach(t, func(f *fleet) {
		a := f.open("")
		a.putPage("de")
		a.Put(f.Context(), page, variantFor(fetched(a.Generation(), "fr"), "fr"))
		for language, want := range map[string]string{"fr": "fr", "it": "", "de": ""} {
			for _, r := range []*replica{a, f.open("")} {
				if body, _ := r.holds(accepts(language)); body != want {
					f.Errorf("%s: %q, want %q", language, body, want)
				}
			}
		}
	})
}

// An error of Redis is a miss and does not affect the memory tier.
func TestErrorOfRedisIsAMiss(t *testing.T) {
	for _, message := range []string{
		"READONLY You can't write against a read only replica.", "OOM command not allowed when used memory > 'maxmemory'.", "LOADING Redis is loading the dataset in memory",
		"NOSCRIPT No matching script. Please use EVAL.", "MOVED 7000 127.0.0.1:1", "CLUSTERDOWN The cluster is down", "NOAUTH Authentication required.",
		"NOPERM this user has no permissions to run the 'hgetall' command", "MASTERDOWN Link with MASTER is down", "BUSY Redis is busy running a script.", "ERR unknown",
	} {
		word, _, _ := strings.Cut(message, " ")
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			server := miniredis.RunT(t)
			f := &fleet{T: t, network: "tcp", address: server.Addr(), replicaLife: time.Minute}
			a, b := f.pair()
			a.Put(t.Context(), page, fetched(a.Generation(), "before", "x"))
			server.SetError(message)
			if body, _ := a.holds(nil); body != "before" {
				t.Errorf("got %q from memory", body)
			}
			if body, _ := b.holds(nil); body != "" {
				t.Errorf("got %q without memory, want a miss", body)
			}
			b.Put(t.Context(), page, fetched(b.Generation(), "here", "x"))
			if body, _ := b.holds(nil); body != "here" {
				t.Errorf("got %q from memory", body)
			}
			if acquired, other := b.AcquireFetch(t.Context(), page, cache.FetchLease{Owner: "b"}); acquired || other != nil {
				t.Error("a lease was reported without Redis")
			}
			b.Purge(t.Context(), "x")
			server.SetError("")
			testservers.Eventually(t, "the other replica applies the purge", func(context.Context) bool { _, purged := a.holds(nil); return purged })
		})
	}
}

func TestScriptsAreLoadedAgainAfterAFlush(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		a.putPage("one")
		if err := client.ScriptFlush(f.Context()).Err(); err != nil {
			f.Fatal(err)
		}
		a.putPage("two")
		if body, _ := f.open("").holds(nil); body != "two" {
			f.Errorf("got %q after the flush, want two", body)
		}
	})
}

func TestRedisIsUsedAgainAfterAnOutage(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		f.cut(true)
		f.eventually("the outage is noticed", func() bool { return !a.shared.ready.Load() && !b.shared.ready.Load() })
		f.cut(false)
		f.eventually("the replicas share entries again", func() bool {
			a.putPage("after")
			body, _ := b.holds(nil)
			return body == "after"
		})
	})
}

// The test connection returns each reply to the next command. A read must not return the value of another key.
func TestReplyToAnotherCommandIsAMiss(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", "a secret of thirty-two characters"} {
		server := miniredis.RunT(t)
		var late atomic.Bool
		l := shifted(t, server.Addr(), &late)
		f := &fleet{T: t, network: "tcp", address: server.Addr(), replicaLife: time.Minute}
		a := f.open(secret)
		keys := make([]cache.Key, 4)
		for i := range keys {
			keys[i] = cache.NewKey(fmt.Sprint("page ", i))
			a.Put(t.Context(), keys[i], fetched(a.Generation(), fmt.Sprint("text ", i)))
		}
		f.address = l
		b := f.open(secret)
		late.Store(true)
		for i, key := range keys {
			list := b.shared.Get(t.Context(), key)
			if slices.ContainsFunc(list, func(e *cache.Entry) bool { return string(e.Body) != fmt.Sprint("text ", i) }) {
				t.Errorf("page %d: %q", i, list[0].Body)
			}
		}
		late.Store(false)
	}
}

// shifted starts a proxy to a Redis server and returns its address. While late is set, the proxy replaces each
// reply to HGETALL by the previous reply.
func shifted(t *testing.T, server string, late *atomic.Bool) (address string) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	serve := func(client net.Conn) {
		upstream, err := new(net.Dialer).DialContext(t.Context(), "tcp", server)
		if err != nil {
			return
		}
		defer func() { _ = upstream.Close() }()
		var before []byte
		request, replies := make([]byte, 1<<16), bufio.NewReader(upstream)
		for {
			n, err := client.Read(request)
			if err != nil {
				return
			}
			_, _ = upstream.Write(request[:n])
			text := make([]byte, 1<<16)
			m, err := replies.Read(text)
			if err != nil {
				return
			}
			out := text[:m]
			if strings.Contains(strings.ToLower(string(request[:n])), "hgetall") {
				if before != nil && late.Load() {
					out = before
				}
				before = text[:m]
			}
			_, _ = client.Write(out)
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}
