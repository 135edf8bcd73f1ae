package cache

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

const (
	widgets = "repo:acme/widgets"
	acme    = "org:acme"
)

// deliver records a delivery about widgets by the webhook of an object.
func deliver(t *testing.T, s *Store, webhook string, events ...string) {
	s.Deliver(t.Context(), Coverage{Webhook: webhook, Object: widgets, Events: events, At: time.Now()}, 0)
}

func covered(s *Store, events ...string) bool {
	return s.Covered([]string{widgets, acme}, events, s.Generation())
}

func TestCoverageNeedsAllEvents(t *testing.T) {
	s := newStore(nil)
	const other = "repo:acme/other"
	for i, c := range []struct {
		webhook  string // of a delivery before the check
		events   string // of that webhook
		complete bool
		object   string
		needed   string
		want     bool
	}{
		{"", "", false, widgets, "issues", false},
		{widgets, "issues", false, widgets, "issues", true},
		{"", "", false, widgets, "issues label", false},
		{acme, "label", false, widgets, "issues label", true}, // one by the repository, one by the organization
		{widgets, AllEvents, false, widgets, "push member", true},
		{"", "", false, other, "issues", false}, // a webhook of a repository does not cover another repository
		{"", "", false, other, "label", true},   // a webhook of an organization covers its repositories
		{widgets, "issues", true, widgets, "issues", true},
		{"", "", false, widgets, "push", false},
	} {
		if c.webhook != "" {
			s.Deliver(t.Context(), Coverage{Webhook: c.webhook, Object: widgets, Events: []string{c.events}, Complete: c.complete, At: time.Now()}, 0)
		}
		testservers.Equal(t, fmt.Sprintf("check %d of %s, %s", i, c.object, c.needed), s.Covered([]string{c.object, acme}, strings.Fields(c.needed), s.Generation()), c.want)
	}
}

func TestCoverageBeginsAtItsDelivery(t *testing.T) {
	s := newStore(nil)
	before := s.Generation()
	deliver(t, s, widgets, "issues")
	since := s.Generation()
	deliver(t, s, widgets, "issues")
	failIf(t, s.Covered([]string{widgets}, []string{"issues"}, before), "an entry from before the first delivery is covered")
	failIf(t, !s.Covered([]string{widgets}, []string{"issues"}, since), "the second delivery ends the coverage of an entry")
}

func TestCoverageEndsADayAfterTheLastDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(nil)
		deliver(t, s, widgets, "issues")
		since := s.Generation()
		time.Sleep(20 * time.Hour)
		deliver(t, s, widgets, "push") // renews the webhook
		time.Sleep(20 * time.Hour)
		failIf(t, !covered(s, "issues", "push"), "coverage ended within a day after a delivery")
		time.Sleep(5 * time.Hour)
		failIf(t, covered(s, "issues"), "covered more than a day after the last delivery")
		deliver(t, s, widgets, "issues")
		failIf(t, covered(s, "push") || s.Covered([]string{widgets}, []string{"issues"}, since), "a delivery after a pause restores the earlier coverage")
	})
}

func TestLostEventEndsCoverageUntilTheNextDelivery(t *testing.T) {
	s := newStore(nil)
	deliver(t, s, acme, AllEvents)
	before := s.Generation()
	s.ReportLost(t.Context(), widgets)
	failIf(t, covered(s, "issues") || !s.Purged([]string{widgets}, before), "covered after a lost event, or not purged")
	failIf(t, !s.Covered([]string{"repo:acme/other", acme}, []string{"issues"}, before), "a lost event of one repository ends the coverage of another repository")
	s.Deliver(t.Context(), Coverage{Webhook: acme, Object: "repo:acme/other", Events: []string{"issues"}, At: time.Now()}, 0)
	failIf(t, covered(s, "issues"), "a delivery for another repository restores the coverage")
	between := s.Generation()
	deliver(t, s, acme, "issues")
	failIf(t, !covered(s, "issues") || s.Covered([]string{widgets, acme}, []string{"issues"}, between), "the next delivery does not restore the coverage for later fetches only")
	n := s.LostEvents()
	failIf(t, n != 1, "%d lost events, want 1", n)
}

func TestCoverageIsBounded(t *testing.T) {
	s := newStore(nil)
	for i := range maxEvents + 10 {
		deliver(t, s, widgets, time.Duration(i).String())
	}
	n := len(s.coverage.delivered(widgets))
	failIf(t, n != maxEvents, "%d events, want %d", n, maxEvents)
	for i := range maxWebhooks + 10 {
		s.ReportLost(t.Context(), time.Duration(i).String())
		deliver(t, s, time.Duration(i).String(), "issues")
	}
	w, l := s.coverage.webhooks.Len(), s.coverage.resumed.Len()
	failIf(t, w != maxWebhooks || l != maxWebhooks, "%d webhooks and %d lost events, want %d", w, l, maxWebhooks)
}

// stream is a shared tier that records its purges.
type stream struct {
	Shared
	purges    []Purge
	following bool
}

func (s *stream) Purge(_ context.Context, p Purge) Generation {
	s.purges = append(s.purges, p)
	return 0
}

func (s *stream) Following() bool { return s.following }

// A replica that has missed the first deliveries of a webhook learns all its events from the next delivery.
func TestDeliveryRepeatsTheEventsOfItsWebhook(t *testing.T) {
	shared := &stream{following: true}
	s := newStore(shared)
	deliver(t, s, widgets, "issues")
	deliver(t, s, widgets, "label")
	got := shared.purges[1]
	failIf(t, !slices.Equal(got.Coverage.Events, []string{"issues", "label"}) || got.Tags == nil, "got %+v, %+v", got, got.Coverage)
}

func TestCoverageNeedsPurgesOfAllReplicas(t *testing.T) {
	shared := &stream{following: true}
	s := newStore(shared)
	deliver(t, s, widgets, "issues")
	failIf(t, !covered(s, "issues"), "not covered")
	shared.following = false
	failIf(t, covered(s, "issues"), "covered by a replica that does not receive purges")
}
