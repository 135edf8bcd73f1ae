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

// Sources are functions that return the current state whenever metrics are collected. Only Certificates is optional.
type Sources struct {
	Accounts     func(ctx context.Context, limit int) ([]limits.Account, error) // at most limit accounts
	Waiting      func() map[limits.ClientResource]int                           // requests that wait for a permit
	Cache        func() (keys int, bytes uint64)                                // size of the memory tier
	Lost         func() time.Time                                               // start of the store's outage; zero while the store responds
	Replicas     func() int                                                     // replicas that share the store
	Reachable    func() bool                                                    // whether the upstream responds
	Certificates func() map[string]time.Time                                    // expiry of the served certificates, by name; nil without TLS
	LostEvents   func() int64                                                   // lost webhook events
	Quarantined  func() int                                                     // credentials that the upstream rejects
}

const (
	// maxShownAccounts bounds the accounts that have gauges. maxReadAccounts bounds the accounts that are read.
	maxShownAccounts, maxReadAccounts = 200, 1000
	// accountsTimeout bounds the read of the accounts from the store.
	accountsTimeout = time.Second
)

// Watch registers gauges that read the sources until the telemetry is closed.
func (m *metrics) Watch(s Sources) error {
	var all []metric.Observable
	var errs []error
	integer := func(name, unit, description string) metric.Int64ObservableGauge {
		i, err := m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		all, errs = append(all, i), append(errs, err)
		return i
	}
	seconds := func(name, description string) metric.Float64ObservableGauge {
		i, err := m.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
		all, errs = append(all, i), append(errs, err)
		return i
	}
	remaining := integer("weir.budget.remaining", "{unit}", "remaining part of a budget")
	limit := integer("weir.budget.limit", "{unit}", "limit of a budget")
	utilization, err := m.meter.Float64ObservableGauge("weir.budget.utilization", metric.WithUnit("1"), metric.WithDescription("used part of a budget, from 0 to 1"))
	all, errs = append(all, utilization), append(errs, err)
	reset := seconds("weir.budget.reset", "time until a budget is reset")
	nominal := integer("weir.client.nominal_limit", "{request}", "share of a client in a primary window")
	lower := integer("weir.client.lower_limit", "{request}", "guarantee of a client in a primary window")
	upper := integer("weir.client.upper_limit", "{request}", "limit of a client in a primary window")
	use := integer("weir.client.use", "{request}", "requests of a client in the open primary window")
	demand := integer("weir.client.demand", "{request}", "requests of a client that wait for a permit")
	inFlight := integer("weir.account.in_flight", "{request}", "requests of an account that are upstream")
	blocked := seconds("weir.account.blocked", "time until the cool-down of an account ends")
	closed := integer("weir.account.closed", "", "1 while an account is closed after failed probes")
	accounts := integer("weir.accounts", "{account}", "accounts, by whether they have gauges")
	queue := integer("weir.queue.length", "{request}", "requests that wait for a permit")
	entries := integer("weir.cache.entries", "{entry}", "keys in the memory tier")
	size := integer("weir.cache.size", "By", "size of the memory tier")
	up := integer("weir.store.up", "", "1 while the store responds")
	replicas := integer("weir.store.replicas", "{replica}", "replicas that share the store")
	reachable := integer("weir.upstream.up", "", "1 while the upstream responds")
	expiry := seconds("weir.tls.certificate.expiry", "time until a certificate expires")
	quarantined := integer("weir.credentials.quarantined", "{credential}", "credentials that the upstream rejects")
	lost, err := m.meter.Int64ObservableCounter("weir.webhooks.lost", metric.WithUnit("{event}"), metric.WithDescription("responses that changed without a webhook event"))
	all, errs = append(all, lost), append(errs, err)
	_, err = m.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		now, waiting, waits := time.Now(), 0, s.Waiting()
		for _, n := range waits {
			waiting += n
		}
		keys, bytes := s.Cache()
		o.ObserveInt64(queue, int64(waiting))
		o.ObserveInt64(entries, int64(keys))
		o.ObserveInt64(size, int64(bytes))
		o.ObserveInt64(up, oneIf(s.Lost().IsZero()))
		o.ObserveInt64(reachable, oneIf(s.Reachable()))
		o.ObserveInt64(replicas, int64(s.Replicas()))
		o.ObserveInt64(quarantined, int64(s.Quarantined()))
		o.ObserveInt64(lost, s.LostEvents())
		if s.Certificates != nil {
			for name, end := range s.Certificates() {
				o.ObserveFloat64(expiry, end.Sub(now).Seconds(), metric.WithAttributes(nameKey.String(name)))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, accountsTimeout)
		defer cancel()
		list, err := s.Accounts(ctx, maxReadAccounts)
		if err != nil {
			return err // the SDK exports the other gauges
		}
		shown := tightest(list)
		for _, a := range shown {
			name := accountKey.String(a.Name)
			o.ObserveInt64(inFlight, int64(a.InUse), metric.WithAttributes(name))
			o.ObserveFloat64(blocked, max(0, a.BlockedUntil.Sub(now).Seconds()), metric.WithAttributes(name))
			o.ObserveInt64(closed, oneIf(!a.ClosedSince.IsZero()), metric.WithAttributes(name))
			for resource, b := range byResource(a.Budgets) {
				with := metric.WithAttributes(name, resourceKey.String(resource))
				o.ObserveInt64(remaining, int64(b.Remaining), with)
				o.ObserveInt64(limit, int64(b.Limit), with)
				if b.Limit > 0 {
					o.ObserveFloat64(utilization, 1-float64(b.Remaining)/float64(b.Limit), with)
				}
				o.ObserveFloat64(reset, max(0, b.Reset.Sub(now).Seconds()), with)
			}
			for _, b := range a.Budgets {
				resource, ok := b.OfClient()
				if !ok || b.Client == "" { // a tag
					continue
				}
				with := metric.WithAttributes(name, resourceKey.String(resource), clientKey.String(b.Client))
				if b.Nominal > 0 { // not a group
					o.ObserveInt64(nominal, int64(b.Nominal), with)
					o.ObserveInt64(demand, int64(waits[limits.ClientResource{Account: a.Name, Resource: resource, Client: b.Client}]), with)
				}
				o.ObserveInt64(lower, int64(b.Guarantee), with)
				o.ObserveInt64(upper, int64(b.Upper), with)
				o.ObserveInt64(use, int64(b.Used), with)
			}
		}
		o.ObserveInt64(accounts, int64(len(shown)), metric.WithAttributes(shownKey.Bool(true)))
		o.ObserveInt64(accounts, int64(len(list)-len(shown)), metric.WithAttributes(shownKey.Bool(false)))
		return nil
	}, all...)
	return errors.Join(append(errs, err)...)
}

func oneIf(condition bool) int64 {
	if condition {
		return 1
	}
	return 0
}

// tightest returns the accounts with the smallest remaining part of any budget, at most maxShownAccounts.
func tightest(list []limits.Account) []limits.Account {
	least := make(map[string]float64, len(list))
	for _, a := range list {
		least[a.Name] = 1
		for _, b := range a.Budgets {
			least[a.Name] = min(least[a.Name], remainingPart(b))
		}
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b limits.Account) int {
		return cmp.Or(cmp.Compare(least[a.Name], least[b.Name]), strings.Compare(a.Name, b.Name))
	})
	return list[:min(len(list), maxShownAccounts)]
}

// remainingPart returns the remaining part of a budget, 0 to 1.
func remainingPart(b limits.Budget) float64 {
	if b.Limit <= 0 {
		return 0
	}
	return float64(b.Remaining) / float64(b.Limit)
}

// byResource returns the budgets of an account by resource, without the budgets of clients. An account has many budgets
// for points, CPU time and content, one per operation or window. The tightest budget of each kind represents that kind.
func byResource(list []limits.Budget) map[string]limits.Budget {
	budgets := make(map[string]limits.Budget, len(list))
	for _, b := range list {
		if _, ok := b.OfClient(); ok {
			continue
		}
		kind, _, _ := strings.Cut(b.Resource, ":")
		if kind == string(limits.Writes) { // a limit of one client
			continue
		}
		if current, ok := budgets[kind]; !ok || remainingPart(b) < remainingPart(current) {
			budgets[kind] = b
		}
	}
	return budgets
}
