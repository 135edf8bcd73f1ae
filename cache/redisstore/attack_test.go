package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
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
					e, _ := r.Lookup(f.Context(), key, nil)
					failIf(f, e == nil || string(e.Body) != want, "%s: %+v, want %s", name, e, want)
				}
			}
			other.Put(f.Context(), key, newer)
			slow.Put(f.Context(), key, older)
			check("newer")
			slow.Put(f.Context(), key, at(time.Second, "newest")) // the request time is now
			e, _ := f.open("").Lookup(f.Context(), key, nil)
			failIf(f, e == nil || string(e.Body) != "newest", "%s: %+v, want the newest", name, e)
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
				body, _ := r.holds(accepts(language))
				failIf(f, body != want, "%s: %q, want %q", language, body, want)
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
			onMiniredis(t, func(f *fleet) {
				a, b := f.pair()
				want := func(name string, r *replica, want string) {
					f.Helper()
					body, _ := r.holds(nil)
					failIf(f, body != want, "%s: got %q, want %q", name, body, want)
				}
				a.putPage("before", "x")
				f.server.SetError(message)
				want("from memory", a, "before")
				want("without memory", b, "")
				b.putPage("here", "x")
				want("from memory, stored during the error", b, "here")
				acquired, other := b.AcquireFetch(f.Context(), page, cache.FetchLease{Owner: "b"})
				failIf(f, acquired || other != nil, "a lease was reported without Redis")
				b.Purge(f.Context(), "x")
				f.server.SetError("")
				f.eventually("the other replica applies the purge", a.stale)
			})
		})
	}
}

func TestScriptsAreLoadedAgainAfterAFlush(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		a.putPage("one")
		noError(f, client.ScriptFlush(f.Context()).Err())
		a.putPage("two")
		body, _ := f.open("").holds(nil)
		failIf(f, body != "two", "got %q after the flush, want two", body)
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

// The client gets each reply to the command before. A read must not return the value of another key.
func TestReplyToAnotherCommandIsAMiss(t *testing.T) {
	for _, secret := range []string{"", "a secret of thirty-two characters"} {
		t.Run(secret, func(t *testing.T) {
			onMiniredis(t, func(f *fleet) {
				a, b := f.open(secret), f.open(secret)
				var before map[string]string
				b.shared.client.AddHook(after{"hgetall", func(cmd redis.Cmder) {
					reply := cmd.(*redis.MapStringStringCmd)
					own := reply.Val()
					if before != nil {
						reply.SetVal(before)
					}
					before = own
				}})
				for i := range 4 {
					key, text := cache.NewKey(fmt.Sprint("page ", i)), fmt.Sprint("text ", i)
					a.Put(f.Context(), key, fetched(a.Generation(), text))
					list := b.shared.Get(f.Context(), key)
					failIf(f, len(before) == 0 || slices.ContainsFunc(list, func(e *cache.Entry) bool { return string(e.Body) != text }), "page %d: %d entries with another text, reply %q", i, len(list), before)
				}
			})
		})
	}
}
