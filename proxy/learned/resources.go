package learned

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Resources remembers which resource the upstream named for each operation and kind of caller, because the catalogue
// cannot know all resources. The next request of the operation is admitted against that resource. The number of
// operations is bounded by the catalogue. The zero value is empty and ready for use. Resources is safe for concurrent
// use and outlives a gateway.
type Resources struct {
	mu      sync.RWMutex
	named   map[string]namedResource // by resourceKey; operations that the upstream named as predicted may be absent
	changed map[string]string        // texts of learned resources that are not shared yet, by resourceKey
	seen    map[string]seenResource  // by resourceKey
}

// seenResource is the resource that the responses of an operation name.
type seenResource struct {
	name    string
	outlier string // another resource in the last response, or empty
}

// namedResource is a resource with the time of the last response that named it.
type namedResource struct {
	name string
	at   time.Time
}

const (
	// namedFor is the time for which a resource is used without a response that names it. Afterwards one request is
	// admitted against the predicted resource, so that a wrong name cannot close an operation.
	namedFor = time.Hour
	// renewNamed is the interval at which a resource that responses confirm is shared again.
	renewNamed = 10 * time.Minute
)

func resourceKey(scope string, kind policy.CallerKind) string { return scope + " " + string(kind) }

// Of returns the resource of an operation: the resource that the upstream named last, or the predicted resource.
func (r *Resources) Of(scope string, kind policy.CallerKind, predicted string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.named) == 0 {
		return predicted
	}
	if n := r.named[resourceKey(scope, kind)]; n.name != "" && time.Since(n.at) < namedFor {
		return n.name
	}
	return predicted
}

// Learn records the resource that a response named for an operation. The operation used another resource, or a learned
// resource that the response confirms. One response in thousands is an outlier, so after a response with one resource, another
// resource counts if two consecutive responses name it. GraphQL has separate limits, so an operation cannot become a GraphQL call.
func (r *Resources) Learn(scope string, kind policy.CallerKind, used, named string) {
	if named == "" || used == policy.GraphQL || named == policy.GraphQL {
		return
	}
	key, now := resourceKey(scope, kind), time.Now()
	r.mu.RLock()
	known, ok := r.named[key]
	seen := r.seen[key]
	r.mu.RUnlock()
	isKnown := named == used && (!ok || now.Sub(known.at) < renewNamed)
	if isKnown && seen == (seenResource{name: named}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]seenResource{}
	}
	if seen = r.seen[key]; seen.name != "" && named != seen.name && named != seen.outlier {
		r.seen[key] = seenResource{seen.name, named}
		return
	}
	if r.seen[key] = (seenResource{name: named}); isKnown {
		return
	}
	if r.named == nil {
		r.named = map[string]namedResource{}
	}
	if r.changed == nil {
		r.changed = map[string]string{}
	}
	r.named[key] = namedResource{named, now}
	r.changed[key] = named + " " + strconv.FormatInt(now.Unix(), 10)
}

// Share exchanges the learned resources with the other replicas. exchange stores the changes of this
// replica and returns what all replicas learned. After an error, the changes are sent again. accepts reports whether a
// name from another replica may be used.
func (r *Resources) Share(
	ctx context.Context, accepts func(name string) bool,
	exchange func(ctx context.Context, changed map[string]string) (map[string]string, error),
) {
	r.mu.Lock()
	changed := r.changed
	r.changed = map[string]string{}
	r.mu.Unlock()
	all, err := exchange(ctx, changed)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		for key, text := range changed {
			r.changed[key] = cmp.Or(r.changed[key], text)
		}
		return
	}
	if r.named == nil {
		r.named = map[string]namedResource{}
	}
	for key, text := range all {
		name, seconds, _ := strings.Cut(text, " ")
		unix, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil || name == policy.GraphQL || !accepts(name) {
			continue
		}
		if at := time.Unix(unix, 0); at.After(r.named[key].at) {
			r.named[key] = namedResource{name, at}
		}
	}
	for key, n := range r.named {
		if time.Since(n.at) >= namedFor {
			delete(r.named, key)
		}
	}
}
