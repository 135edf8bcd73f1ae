package limits

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirgate/weir/policy"
)

// MaxGrants bounds the grants in force, and MaxGrantTime bounds the time of a grant.
const (
	MaxGrants    = 100
	MaxGrantTime = 24 * time.Hour
)

// ErrInvalidGrant is the error of [Ledger.Grant] for a grant that a ledger cannot apply. ErrUnknownGrant is the error of
// [Ledger.Revoke] if no grant in force has the ID.
var (
	ErrInvalidGrant = errors.New("invalid grant")
	ErrUnknownGrant = errors.New("no grant in force has this ID")
)

// Grant raises the guarantee and the limit of a client or group by a number of requests, until Ends. It applies to the
// primary window of one resource, in every account of the client that several clients use.
type Grant struct {
	ID       string    `json:"id"`
	Client   string    `json:"client"` // or group
	Resource string    `json:"resource"`
	Requests int       `json:"requests"`
	Ends     time.Time `json:"ends"`
}

// String describes the grant in messages.
func (g Grant) String() string {
	return fmt.Sprintf("%s: %d more requests of %s for %s until %s", g.ID, g.Requests, g.Resource, g.Client, g.Ends.UTC().Format(time.RFC3339))
}

// CheckGrant returns an error if the rules do not allow a grant.
func (r *Rules) CheckGrant(g Grant, now time.Time) error {
	window, left := r.For(policy.User, g.Resource).Window, g.Ends.Sub(now)
	switch {
	case g.Requests < 1:
		return fmt.Errorf("%w: requests: %d is less than 1", ErrInvalidGrant, g.Requests)
	case left <= 0 || left > MaxGrantTime:
		return fmt.Errorf("%w: for: %s is out of range; use more than 0 and at most 24h", ErrInvalidGrant, left.Round(time.Second))
	case window.Microseconds() < dividedFrom:
		return fmt.Errorf("%w: resource: the window of %s is %s; only windows of ten minutes and longer have guarantees", ErrInvalidGrant, g.Resource, window)
	}
	return nil
}

// CheckGrants returns an error if too many grants are in force.
func CheckGrants(inForce int) error {
	if inForce > MaxGrants {
		return fmt.Errorf("%w: %d grants are in force; revoke one of them", ErrInvalidGrant, MaxGrants)
	}
	return nil
}

// SplitGrants divides grants into those in force and those that have ended.
func SplitGrants(list []Grant, now time.Time) (inForce, ended []Grant) {
	for _, g := range list {
		if g.Ends.After(now) {
			inForce = append(inForce, g)
		} else {
			ended = append(ended, g)
		}
	}
	return inForce, ended
}

// granted returns the requests by which grants raise the guarantee and the limit of a client or group.
func (r *Rules) granted(client, resource string, now int64) (requests float64) {
	for _, g := range r.Grants {
		if g.Client == client && g.Resource == resource && g.Ends.UnixMicro() > now+r.Ahead.Microseconds() {
			requests += float64(g.Requests)
		}
	}
	return requests
}
