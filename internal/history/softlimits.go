package history

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
)

// SoftLimit reports that a client or group has used a part of its limit in a primary window, or that it will exhaust the
// limit before the reset.
type SoftLimit struct {
	Account  string `json:"account"`
	Client   string `json:"client"` // or group
	Resource string `json:"resource"`
	// Threshold is "50", "80" or "100" percent of the limit, or "forecast".
	Threshold string    `json:"threshold"`
	Used      int       `json:"used"`
	Limit     int       `json:"limit"`
	Reset     time.Time `json:"reset"`
	// Ends is the time at which the client exhausts its limit at its mean rate of the window. It is set for a forecast.
	Ends time.Time `json:"ends,omitzero"`
}

// Name identifies the soft limit in its window.
func (s SoftLimit) Name() string {
	return strings.Join([]string{s.Resource, s.Threshold, strconv.Quote(s.Client), s.Account}, ":")
}

// Expires returns the time after which only a later window can have a soft limit of this name.
func (s SoftLimit) Expires() time.Time { return s.Reset.Add(settleTime) }

const (
	// No forecast is made in the first of forecastParts parts of a window.
	forecastParts = 10
	// settleTime is the time from the start of a window until other replicas have removed the requests of the previous
	// window from the ledger.
	settleTime = 10 * time.Second
	// sameWindow is the largest difference between two resets of one window. It is shorter than any divided window.
	sameWindow = time.Minute
	// maxSoftLimits bounds the soft limits of all open windows. The history does not report more of them.
	maxSoftLimits = 4 * maxSeries
)

// softLimits contains the reset of the window in which each soft limit was last reached, by name.
type softLimits map[string]time.Time

// reportSoftLimits reports each soft limit once per window: to the watchers and to Sources.SoftLimit.
func (h *History) reportSoftLimits(ctx context.Context, accounts []limits.Account, now time.Time) {
	maps.DeleteFunc(h.softLimits, func(_ string, reset time.Time) bool { return now.Sub(reset) > sameWindow })
	for _, a := range accounts {
		for _, b := range a.Budgets {
			for _, s := range reached(a.Name, b, now) {
				last, known := h.softLimits[s.Name()]
				if known && s.Reset.Sub(last) < sameWindow || !known && len(h.softLimits) == maxSoftLimits {
					continue
				}
				if h.sources.SoftLimit(ctx, s) != nil {
					continue
				}
				h.softLimits[s.Name()] = s.Reset
				h.mu.Lock()
				h.publish(softLimitEvent, s)
				h.mu.Unlock()
			}
		}
	}
}

// reached returns the soft limits that the budget of a client has reached.
func reached(account string, b limits.Budget, now time.Time) (list []SoftLimit) {
	resource, ok := b.OfClient()
	elapsed := b.Window - b.Reset.Sub(now)
	if !ok || b.Client == "" || b.Reset.IsZero() || elapsed < settleTime {
		return nil
	}
	s := SoftLimit{Account: account, Client: b.Client, Resource: resource, Used: b.Used, Limit: b.Upper, Reset: b.Reset}
	for _, percent := range []int{50, 80, 100} {
		if 100*b.Used >= percent*b.Upper {
			s.Threshold = strconv.Itoa(percent)
			list = append(list, s)
		}
	}
	if b.Used == 0 || b.Used >= b.Upper || elapsed < b.Window/forecastParts {
		return list
	}
	exhausted := time.Duration(float64(elapsed) * float64(b.Upper) / float64(b.Used)) // since the start of the window
	if exhausted < b.Window {
		s.Threshold, s.Ends = "forecast", now.Add(exhausted-elapsed)
		list = append(list, s)
	}
	return list
}
