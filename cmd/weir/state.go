package main

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/limits/redisledger"
	"github.com/weirgate/weir/proxy"
)

// gatewayState is how a gateway is, for people to look at.
type gatewayState struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Now      time.Time `json:"now"`
	Upstream string    `json:"upstream"`
	Dialect  string    `json:"dialect"`
	// Guarded is whether the admin listener asks for a token, which a browser's user
	// can show.
	Guarded bool       `json:"guarded"`
	Store   storeState `json:"store"`
	// Waiting is how many requests wait, by account.
	Waiting map[string]int `json:"waiting"`
	Polling []proxy.Poll   `json:"polling"`
	// Refused are the credentials that the API refuses.
	Refused []credential.Quarantined `json:"refused"`
	Cache   struct {
		Keys  int    `json:"keys"`
		Bytes uint64 `json:"bytes"`
		Most  uint64 `json:"most"`
	} `json:"cache"`
}

// storeState is how the store is.
type storeState struct {
	Kind string `json:"kind"` // memory, file or redis
	// Lost is since when it does not answer; zero while it does.
	Lost time.Time `json:"lost,omitzero"`
	// Replicas is how many share it.
	Replicas int `json:"replicas"`
}

// state is how the gateway is now.
func (g *gateway) state() any {
	c := g.current.Load()
	s := gatewayState{
		Version: version(), Started: g.began.UTC(), Now: time.Now().UTC(), Upstream: c.config.Upstream.URL, Dialect: c.config.Upstream.Dialect,
		Guarded: g.started.Admin.Token != "", Store: g.store.state(g.started.Store.URL), Waiting: g.limiter.Waiting(), Polling: append(c.proxy.Polling(), g.former.polling()...),
		Refused: g.credentialHealth.Quarantined(),
	}
	s.Cache.Keys, s.Cache.Bytes = g.cache.Size()
	s.Cache.Most = uint64(g.started.Cache.Memory)
	return s
}

// state is how the store is that a URL names.
func (s *store) state(url string) storeState {
	if ledger, ok := s.Ledger.(*redisledger.Ledger); ok {
		return storeState{Kind: "redis", Lost: ledger.Lost(), Replicas: ledger.Replicas()}
	}
	if strings.TrimPrefix(url, "memory:") != "" {
		return storeState{Kind: "file", Replicas: 1}
	}
	return storeState{Kind: "memory", Replicas: 1}
}

// former are the gateways of configurations that were in force, while they still ask for
// what is computed. It is safe for concurrent use.
type former struct {
	mu   sync.Mutex
	list []*proxy.Gateway
}

func (f *former) add(g *proxy.Gateway) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, g)
}

// polling lists what they ask for; those that ask for nothing are forgotten.
func (f *former) polling() (polls []proxy.Poll) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.DeleteFunc(f.list, func(g *proxy.Gateway) bool {
		own := g.Polling()
		polls = append(polls, own...)
		return len(own) == 0
	})
	return polls
}
