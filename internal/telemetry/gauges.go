package telemetry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/weirgate/weir/limits"
)

// Sources are what is looked at whenever metrics are asked for. All are required but
// Certificates.
type Sources struct {
	// Accounts lists at most so many accounts.
	Accounts func(ctx context.Context, most int) ([]limits.Account, error)
	// Waiting tells how many requests wait for a permit, by account.
	Waiting func() map[string]int
	// Cache reports how many keys are held and how many bytes they weigh.
	Cache func() (keys int, bytes uint64)
	// Lost reports since when the store does not answer; zero while it does.
	Lost func() time.Time
	// Replicas is how many share the store.
	Replicas func() int
	// Reachable reports whether the upstream answers, as far as is known.
	Reachable func() bool
	// Certificates tells until when those are valid that clients are shown, by name; nil
	// without TLS.
	Certificates func() map[string]time.Time
	// Quarantined is how many credentials are not used because the API refuses them.
	Quarantined func() int
}

const (
	// shownAccounts bounds the accounts that have gauges of their own, readAccounts those
	// that are looked at.
	shownAccounts, readAccounts = 200, 1000
	// scrapePatience is how long the store may take to tell of the accounts.
	scrapePatience = time.Second
)

// gauges are the instruments that are looked at.
type gauges struct {
	remaining, limit, inFlight, accounts, queue, entries, size, up, replicas, reachable, quarantined metric.Int64ObservableGauge
	reset, blocked, expiry                                                                           metric.Float64ObservableGauge
}

// Watch looks at the sources from now on, until the telemetry is closed.
func (m *metrics) Watch(s Sources) error {
	var g gauges
	var all []metric.Observable
	var errs []error
	whole := func(name, unit, about string) metric.Int64ObservableGauge {
		i, err := m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
		all, errs = append(all, i), append(errs, err)
		return i
	}
	seconds := func(name, about string) metric.Float64ObservableGauge {
		i, err := m.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(about))
		all, errs = append(all, i), append(errs, err)
		return i
	}
	g.remaining = whole("weir.budget.remaining", "{unit}", "what is left of a budget")
	g.limit = whole("weir.budget.limit", "{unit}", "what a budget has in all")
	g.reset = seconds("weir.budget.reset", "time until a budget is back")
	g.inFlight = whole("weir.account.in_flight", "{request}", "requests of an account that are upstream")
	g.blocked = seconds("weir.account.blocked", "time until an account's cool-down ends")
	g.accounts = whole("weir.accounts", "{account}", "accounts, by whether they have gauges of their own")
	g.queue = whole("weir.queue.length", "{request}", "requests that wait for a permit")
	g.entries = whole("weir.cache.entries", "{entry}", "keys that the memory tier holds")
	g.size = whole("weir.cache.size", "By", "what the memory tier weighs")
	g.up = whole("weir.store.up", "", "1 while the store answers")
	g.replicas = whole("weir.store.replicas", "{replica}", "replicas that share the store")
	g.reachable = whole("weir.upstream.up", "", "1 while the API answers")
	g.expiry = seconds("weir.tls.certificate.expiry", "time until a certificate ends")
	g.quarantined = whole("weir.credentials.quarantined", "{credential}", "credentials that the API refuses")
	_, err := m.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		g.observe(o, s, time.Now())
		return g.observeAccounts(ctx, o, s)
	}, all...)
	return errors.Join(append(errs, err)...)
}

func (g *gauges) observe(o metric.Observer, s Sources, now time.Time) {
	waiting := 0
	for _, n := range s.Waiting() {
		waiting += n
	}
	keys, bytes := s.Cache()
	up, reachable := int64(0), int64(0)
	if s.Lost().IsZero() {
		up = 1
	}
	if s.Reachable() {
		reachable = 1
	}
	o.ObserveInt64(g.queue, int64(waiting))
	o.ObserveInt64(g.entries, int64(keys))
	o.ObserveInt64(g.size, int64(bytes))
	o.ObserveInt64(g.up, up)
	o.ObserveInt64(g.reachable, reachable)
	o.ObserveInt64(g.replicas, int64(s.Replicas()))
	o.ObserveInt64(g.quarantined, int64(s.Quarantined()))
	if s.Certificates != nil {
		for name, end := range s.Certificates() {
			o.ObserveFloat64(g.expiry, end.Sub(now).Seconds(), metric.WithAttributes(nameKey.String(name)))
		}
	}
}

func (g *gauges) observeAccounts(ctx context.Context, o metric.Observer, s Sources) error {
	ctx, cancel := context.WithTimeout(ctx, scrapePatience)
	defer cancel()
	list, err := s.Accounts(ctx, readAccounts)
	if err != nil {
		return err // the rest is told all the same
	}
	shown := tightest(list)
	now := time.Now()
	for _, a := range shown {
		name := accountKey.String(a.Name)
		o.ObserveInt64(g.inFlight, int64(a.InUse), metric.WithAttributes(name))
		o.ObserveFloat64(g.blocked, until(a.BlockedUntil, now), metric.WithAttributes(name))
		for resource, b := range byResource(a.Budgets) {
			with := metric.WithAttributes(name, resourceKey.String(resource))
			o.ObserveInt64(g.remaining, int64(b.Remaining), with)
			o.ObserveInt64(g.limit, int64(b.Limit), with)
			o.ObserveFloat64(g.reset, until(b.Reset, now), with)
		}
	}
	o.ObserveInt64(g.accounts, int64(len(shown)), metric.WithAttributes(shownKey.Bool(true)))
	o.ObserveInt64(g.accounts, int64(len(list)-len(shown)), metric.WithAttributes(shownKey.Bool(false)))
	return nil
}

// tightest are the accounts that are nearest to the end of a budget, shownAccounts at
// most.
func tightest(list []limits.Account) []limits.Account {
	least := make(map[string]float64, len(list))
	for _, a := range list {
		least[a.Name] = 1
		for _, b := range a.Budgets {
			least[a.Name] = min(least[a.Name], left(b))
		}
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b limits.Account) int {
		return cmp.Or(cmp.Compare(least[a.Name], least[b.Name]), strings.Compare(a.Name, b.Name))
	})
	return list[:min(len(list), shownAccounts)]
}

// left is the part of a budget that is left.
func left(b limits.Budget) float64 {
	if b.Limit <= 0 {
		return 0
	}
	return float64(b.Remaining) / float64(b.Limit)
}

// byResource are the budgets of an account by their resource. Of those that the API does
// not show, of which there is one for each operation or window, the tightest counts for
// its kind: points, cpu, content.
func byResource(list []limits.Budget) map[string]limits.Budget {
	budgets := make(map[string]limits.Budget, len(list))
	for _, b := range list {
		kind, _, _ := strings.Cut(b.Resource, ":")
		if before, ok := budgets[kind]; !ok || left(b) < left(before) {
			budgets[kind] = b
		}
	}
	return budgets
}
