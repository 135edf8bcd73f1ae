package cache

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Coverage is the part of a [Purge] about webhooks. It describes the events that a webhook delivers, or reports that an
// event was lost. Objects are named by tags: "repo:acme/widgets" or "org:acme".
type Coverage struct {
	// Webhook is the object to which the webhook belongs.
	Webhook string `json:"webhook,omitempty"`
	// Object is the object of the delivery or of the lost event.
	Object string `json:"object"`
	// Events lists events that the webhook delivers. [AllEvents] means all.
	Events []string `json:"events,omitempty"`
	// Complete is set if the webhook delivers no other events.
	Complete bool `json:"complete,omitempty"`
	// At is the time of the delivery.
	At time.Time `json:"at,omitzero"`
	// Lost is set if a response changed without an event. Coverage of the object then ends until the next delivery.
	Lost bool `json:"lost,omitempty"`
}

// AllEvents means all events in a list of events.
const AllEvents = "*"

const (
	// maxWebhooks bounds the objects whose webhooks are remembered. maxEvents bounds the events of one object.
	maxWebhooks, maxEvents = 10_000, 256
	// deliveredFor is the time after the last delivery at which coverage ends.
	deliveredFor = 24 * time.Hour
	// never is later than all generations.
	never Generation = math.MaxUint64
)

// coverage contains what webhooks deliver. The zero value is empty.
type coverage struct {
	lost atomic.Int64 // lost events that this replica reported

	mu       sync.Mutex // guards the fields below
	webhooks *simplelru.LRU[string, *deliveries]
	// resumed contains the objects of lost events, with the generation of the next delivery, or never.
	resumed *simplelru.LRU[string, Generation]
}

// deliveries describes the webhooks of one object.
type deliveries struct {
	since map[string]Generation // the generation at which the coverage of an event began
	last  time.Time             // time of the last delivery
}

// apply records a coverage at a generation. A nil coverage has no effect.
func (c *coverage) apply(v *Coverage, g Generation) {
	if v == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.webhooks == nil {
		c.webhooks, _ = simplelru.NewLRU[string, *deliveries](maxWebhooks, nil)
		c.resumed, _ = simplelru.NewLRU[string, Generation](maxWebhooks, nil)
	}
	if v.Lost {
		c.resumed.Add(v.Object, never)
		return
	}
	for _, object := range []string{v.Object, v.Webhook} {
		if from, ok := c.resumed.Get(object); ok && from == never {
			c.resumed.Add(object, g)
		}
	}
	d, ok := c.webhooks.Get(v.Webhook)
	at := steady(v.At, time.Now())
	if !ok || at.Sub(d.last) > deliveredFor {
		d = &deliveries{since: map[string]Generation{}}
		c.webhooks.Add(v.Webhook, d)
	}
	if at.After(d.last) {
		d.last = at
	}
	if v.Complete {
		maps.DeleteFunc(d.since, func(event string, _ Generation) bool { return !slices.Contains(v.Events, event) })
	}
	for _, event := range v.Events {
		if _, ok := d.since[event]; !ok && len(d.since) < maxEvents {
			d.since[event] = g
		}
	}
}

// covers reports whether the webhooks of the objects deliver all the events, and have delivered them since a
// generation. The first object is the object of the events.
func (c *coverage) covers(objects, events []string, since Generation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.webhooks == nil {
		return false
	}
	if from, ok := c.resumed.Get(objects[0]); ok && since < from {
		return false
	}
	now := time.Now()
	delivered := func(event string) bool {
		return slices.ContainsFunc(objects, func(object string) bool {
			d, ok := c.webhooks.Get(object)
			return ok && now.Sub(d.last) <= deliveredFor && (d.has(event, since) || d.has(AllEvents, since))
		})
	}
	return !slices.ContainsFunc(events, func(event string) bool { return !delivered(event) })
}

func (d *deliveries) has(event string, since Generation) bool {
	from, ok := d.since[event]
	return ok && from <= since
}

// delivered returns the events that an object's webhooks deliver, sorted.
func (c *coverage) delivered(webhook string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.webhooks == nil {
		return nil
	}
	d, ok := c.webhooks.Get(webhook)
	if !ok || time.Since(d.last) > deliveredFor {
		return nil
	}
	return slices.Sorted(maps.Keys(d.since))
}

// Covered reports whether an entry whose fetch began at a generation is current as long as it is not purged. This is the
// case if the webhooks of the objects deliver all the events since then, and this replica receives the purges of all
// replicas. The first object is the object of the entry.
func (s *Store) Covered(objects, events []string, since Generation) bool {
	return (s.shared == nil || s.shared.Following()) && s.coverage.covers(objects, events, since)
}

// Deliver purges the tags of a webhook delivery as PurgeUnsettled does, and records on every replica what the webhook delivers.
// The record repeats the earlier events of the webhook, for replicas that have not received the earlier records.
func (s *Store) Deliver(ctx context.Context, c Coverage, lag time.Duration, tags ...string) {
	if !c.Complete {
		c.Events = slices.Concat(s.coverage.delivered(c.Webhook), c.Events)
		slices.Sort(c.Events)
		c.Events = slices.Compact(c.Events)
	}
	s.purge(ctx, Purge{Tags: append([]string{}, tags...), Coverage: &c, Unsettled: lag, Cause: CauseEvent}) // the stream treats nil tags as unknown tags
}

// ReportLost purges an object and ends its coverage until the next delivery, on every replica. The caller has found a
// response that changed without an event.
func (s *Store) ReportLost(ctx context.Context, object string) {
	s.coverage.lost.Add(1)
	s.EndCoverage(ctx, object, object)
}

// EndCoverage purges tags and ends the coverage of an object until the next delivery, on every replica.
func (s *Store) EndCoverage(ctx context.Context, object string, tags ...string) {
	s.purge(ctx, Purge{Tags: tags, Coverage: &Coverage{Object: object, Lost: true}})
}

// LostEvents returns the number of calls of ReportLost.
func (s *Store) LostEvents() int64 { return s.coverage.lost.Load() }
