package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

// TestAttack29WhoWasHeldUpOverwritesNothing: an answer that was asked for earlier, and
// comes later, does not take the place of a newer one, be the clocks set as they like.
func TestAttack29WhoWasHeldUpOverwritesNothing(t *testing.T) {
	onEach(t, func(f *fleet) {
		for name, ahead := range map[string]time.Duration{"clocks agree": 0, "the clock of the newer is ahead": time.Hour} {
			key, paused, other := cache.NewKey(name), f.open(""), f.open("")
			at := func(d time.Duration, body string) *cache.Entry {
				e := fetched(paused.Generation(), body)
				e.Answered = e.Answered.Add(d)
				return e
			}
			older, newer := at(-5*time.Second, "older"), at(ahead, "newer")
			holds := func(want string) {
				f.Helper()
				for _, r := range []*replica{other, f.open("")} {
					if e, _ := r.Lookup(f.Context(), key, nil); e == nil || string(e.Body) != want {
						f.Errorf("%s: %+v, want %s", name, e, want)
					}
				}
			}
			other.Put(f.Context(), key, newer)
			paused.Put(f.Context(), key, older)
			holds("newer")
			paused.Put(f.Context(), key, at(time.Second, "newest")) // requested now
			if e, _ := f.open("").Lookup(f.Context(), key, nil); e == nil || string(e.Body) != "newest" {
				f.Errorf("%s: %+v, want the newest", name, e)
			}
		}
	})
}

// TestAttack22WhatVariesFromNowOnIsAskedForAgain, also where Redis holds both.
func TestAttack22WhatVariesFromNowOnIsAskedForAgain(t *testing.T) {
	onEach(t, func(f *fleet) {
		a := f.open("")
		a.Put(f.Context(), page, fetched(a.Generation(), "de"))
		varies := fetched(a.Generation(), "fr")
		varies.Vary = []cache.Field{{Name: "Accept-Language", Value: "fr"}}
		a.Put(f.Context(), page, varies)
		for language, want := range map[string]string{"fr": "fr", "it": "", "de": ""} {
			for _, r := range []*replica{a, f.open("")} {
				if body, _ := r.holds(http.Header{"Accept-Language": {language}}); body != want {
					f.Errorf("%s: %q, want %q", language, body, want)
				}
			}
		}
	})
}

// TestAttack41WhateverRedisSays is a miss, and nothing that is kept here is lost.
func TestAttack41WhateverRedisSays(t *testing.T) {
	for _, says := range []string{
		"READONLY You can't write against a read only replica.", "OOM command not allowed when used memory > 'maxmemory'.", "LOADING Redis is loading the dataset in memory",
		"NOSCRIPT No matching script. Please use EVAL.", "MOVED 7000 127.0.0.1:1", "CLUSTERDOWN The cluster is down", "NOAUTH Authentication required.",
		"NOPERM this user has no permissions to run the 'hgetall' command", "MASTERDOWN Link with MASTER is down", "BUSY Redis is busy running a script.", "ERR whatever",
	} {
		word, _, _ := strings.Cut(says, " ")
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			server := miniredis.RunT(t)
			f := &fleet{T: t, network: "tcp", address: server.Addr()}
			a, b := f.open(""), f.open("")
			a.Put(t.Context(), page, fetched(a.Generation(), "before", "x"))
			server.SetError(says)
			if body, _ := a.holds(nil); body != "before" {
				t.Errorf("%q is kept here", body)
			}
			if body, _ := b.holds(nil); body != "" {
				t.Errorf("%q", body)
			}
			b.Put(t.Context(), page, fetched(b.Generation(), "here", "x"))
			if body, _ := b.holds(nil); body != "here" {
				t.Errorf("%q is kept here", body)
			}
			if mine, other := b.AcquireFetch(t.Context(), page, cache.FetchLease{Owner: "b"}); mine || other != nil {
				t.Error("nobody can tell whose it is")
			}
			b.Purge(t.Context(), "x")
			server.SetError("")
			testservers.Eventually(t, "the other learns of the purge", func(context.Context) bool { _, purged := a.holds(nil); return purged })
		})
	}
}

// TestAttack41AScriptThatRedisForgetsIsToldAgain, and it is not asked again for nothing.
func TestAttack41AScriptThatRedisForgetsIsToldAgain(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		defer func() { _ = client.Close() }()
		a.Put(f.Context(), page, fetched(a.Generation(), "one"))
		if err := client.ScriptFlush(f.Context()).Err(); err != nil {
			f.Fatal(err)
		}
		a.Put(f.Context(), page, fetched(a.Generation(), "two"))
		if body, _ := f.open("").holds(nil); body != "two" {
			f.Errorf("%q", body)
		}
	})
}

// TestAttack41RedisIsUsedAgain when it is back, also where nobody purges anything then.
func TestAttack41RedisIsUsedAgain(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		f.cut(true)
		testservers.Eventually(f, "it is gone", func(context.Context) bool { return !a.shared.ready.Load() && !b.shared.ready.Load() })
		f.cut(false)
		testservers.Eventually(f, "what one keeps the other has", func(context.Context) bool {
			a.Put(f.Context(), page, fetched(a.Generation(), "after"))
			body, _ := b.holds(nil)
			return body == "after"
		})
	})
}

// TestAttack43AnAnswerToAnotherQuestionIsAMiss: a connection whose answers come one too
// late gives no key the value of another.
func TestAttack43AnAnswerToAnotherQuestionIsAMiss(t *testing.T) {
	for _, secret := range []string{"", "a secret of thirty-two characters"} {
		server := miniredis.RunT(t)
		var late atomic.Bool
		l := shifted(t, server.Addr(), &late)
		f := &fleet{T: t, network: "tcp", address: server.Addr()}
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

// shifted forwards to a server, and gives back, once it is late, the answer to the question
// before in the place of each answer to HGETALL.
func shifted(t *testing.T, server string, late *atomic.Bool) (address string) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	serve := func(client net.Conn) {
		defer func() { _ = client.Close() }()
		upstream, err := new(net.Dialer).DialContext(t.Context(), "tcp", server)
		if err != nil {
			return
		}
		defer func() { _ = upstream.Close() }()
		var before []byte
		asked, answers := make([]byte, 1<<16), bufio.NewReader(upstream)
		for {
			n, err := client.Read(asked)
			if err != nil {
				return
			}
			_, _ = upstream.Write(asked[:n])
			text := make([]byte, 1<<16)
			m, err := answers.Read(text)
			if err != nil {
				return
			}
			out := text[:m]
			if strings.Contains(strings.ToLower(string(asked[:n])), "hgetall") {
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
