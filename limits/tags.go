package limits

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

const (
	// maxTags bounds the tags of one client that have separate budgets. Further tags share the budget otherTags, which
	// is no valid tag.
	maxTags   = 100
	otherTags = "*"
	// tagTime is the time from the last request with a tag until another tag may use its place. It is the length of the
	// primary windows that have clients with limits.
	tagTime = time.Hour
)

// tagNames is the set of the tags that have budgets in this process. The zero value is an empty set.
type tagNames struct {
	mu      sync.Mutex
	clients map[string]map[string]time.Time // time of the last request, by client and tag
	swept   time.Time
}

// add adds a tag of a client, and reports whether the tag has a separate budget.
func (s *tagNames) add(client, tag string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.swept) >= sweepInterval {
		s.swept = now
		maps.DeleteFunc(s.clients, func(_ string, tags map[string]time.Time) bool {
			maps.DeleteFunc(tags, func(_ string, last time.Time) bool { return now.Sub(last) >= tagTime })
			return len(tags) == 0
		})
	}
	tags := s.clients[client]
	if _, known := tags[tag]; !known && len(tags) >= maxTags {
		return false
	}
	if tags == nil {
		if s.clients == nil {
			s.clients = map[string]map[string]time.Time{}
		}
		tags = map[string]time.Time{}
		s.clients[client] = tags
	}
	tags[tag] = now
	return true
}

// TagBudget returns the name of the budget that counts the requests of a caller with a tag, or an empty string if the
// caller's client has no limit for tags. Requests without a tag share the budget of the empty tag, so that a client
// cannot avoid the limit.
func (l *Limiter) TagBudget(caller policy.Caller, tag string) string {
	limited := func(b policy.ClientBudget) bool { return b.Client == caller.Client && b.TagLimit > 0 }
	if !slices.ContainsFunc(caller.Clients, limited) {
		return ""
	}
	return l.TagName(caller.Client, tag)
}

// TagName returns the name of the budget for the requests of a client with a tag.
func (l *Limiter) TagName(client, tag string) string {
	if !l.tags.add(client, tag, l.now()) {
		tag = otherTags
	}
	return tagPrefix(client) + tag
}

func tagPrefix(client string) string { return client + "/" }

// tags returns the names of the budgets for the tags of a client, in order. foreign is the use of other replicas by
// budget.
func (w *window) tags(client string, foreign map[string]Use) []string {
	budgets := map[string]bool{}
	for name := range w.Clients {
		budgets[name] = true
	}
	for budget := range foreign {
		if name, ok := strings.CutPrefix(budget, clientBudget(w.Resource, "")); ok {
			budgets[name] = true
		}
	}
	maps.DeleteFunc(budgets, func(name string, _ bool) bool { return !strings.HasPrefix(name, tagPrefix(client)) })
	return slices.Sorted(maps.Keys(budgets))
}
