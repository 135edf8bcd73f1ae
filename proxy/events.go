package proxy

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// eventSource returns the objects whose webhooks report the changes of the response to the question, and the events that
// report them. The first object is the subject of the response. The objects are empty if no webhook reports the changes.
func (g *Gateway) eventSource(q *question) (objects, events []string) {
	events = g.Catalogue.DecidedBy(q.match.Operation)
	at := q.match.Collection()
	if len(events) == 0 || q.match.Operation.Cache.Class != policy.PerCaller {
		return nil, nil
	}
	objects = []string{at.Root + ":" + at.Name}
	if organization, _, ok := strings.Cut(at.Name, "/"); ok {
		objects = append(objects, "org:"+organization)
	}
	return objects, events
}

// reported reports whether webhooks report the changes of a stored response, and have done so since its fetch.
func (g *Gateway) reported(q *question, e *cache.Entry) bool {
	objects, events := g.eventSource(q)
	return len(objects) > 0 && g.Cache.Covered(objects, events, e.Since)
}

// isCurrent reports whether a look-up answers the question because webhooks report changes, although the lifetime of the
// response has ended. RFC 9111 section 4.2.4 permits this by configuration. The response must have a lifetime,
// must not be suspect and must not require revalidation, and the client's Cache-Control must allow the response. A response
// about an unfinished state, or of an operation with a longest lifetime, is never current.
func (g *Gateway) isCurrent(a *attempt, e *cache.Entry, purged bool, now time.Time) bool {
	return e != nil && !purged && !e.Fresh(now) && e.Age(now) < g.WebhookFresh && e.Status == http.StatusOK && e.Lifetime > 0 &&
		e.Suspect == "" && !e.NeverStale(a.rule) && !a.mustRevalidate(e, now) && a.match.Operation.Cache.MaxTTL == 0 &&
		!slices.Contains(e.Tags, unfinishedTag) && g.reported(a.question, e)
}

// hitStatus returns the Cache-Status of a stored response that answers the question.
func (g *Gateway) hitStatus(a *attempt, e *cache.Entry, now time.Time) CacheStatus {
	if a.current {
		return CacheStatus{Hit: true, TTL: int((g.WebhookFresh - e.Age(now)) / time.Second), HasTTL: true, Detail: "webhook"}
	}
	return hitOf(e, now)
}

// checkEvents reports a lost event if a revalidation replaced a response whose changes webhooks report, and no event
// has arrived. e is the new response.
func (g *Gateway) checkEvents(a *attempt, e *cache.Entry) {
	old := a.stale
	if g.WebhookFresh == 0 || old == nil || old.Suspect != "" || old.Status != http.StatusOK || e.Status != http.StatusOK || bytes.Equal(old.Body, e.Body) ||
		g.Cache.Purged(old.Tags, old.Since) || !g.reported(a.question, old) {
		return
	}
	objects, _ := g.eventSource(a.question)
	g.Log.Warn("response changed without a webhook event; its repository or organization is revalidated until the next delivery",
		"request", a.record.ID, "object", objects[0], "operation", a.match.Operation.ID)
	g.Cache.ReportLost(a.detach(), objects[0])
}
