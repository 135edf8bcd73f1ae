package credential

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Pool is the credentials that one client may spend, in the order in which the
// configuration names them, and the choice among them. It is safe for concurrent
// use. Whatever it gives out is one of these.
type Pool struct {
	held   []Caller // never empty
	health *Health

	mu sync.Mutex
	// present is the class of who pays now, by resource: answers are kept by class, so
	// that a change costs what could have been validated.
	present map[string]string
}

// Request is what a credential is wanted for.
type Request struct {
	Operation *policy.Operation
	// Resource is the budget that it counts against.
	Resource string
	// Path is what is asked for, Target the repository, organization or the like that
	// it is part of.
	Path, Target string
	// Left tells what a caller's account has left of the resource. Nil where nothing is
	// going to be spent; then who pays now is as good as anybody.
	Left func(policy.Caller) (remaining int, known bool)
	// Except are the classes of those that have been tried, for this request, Limited
	// whether they were refused for a limit.
	Except  []string
	Limited bool
}

func newPool(c Config, client Client, held map[string]Caller) *Pool {
	p := &Pool{health: c.Health, present: map[string]string{}}
	for _, name := range client.Credentials {
		pays := held[name]
		pays.Client, pays.Share, pays.Priority, pays.Scope, pays.Debug, pays.Pool = client.Name, client.Share, client.Priority, client.Scope, client.Debug, p
		p.held = append(p.held, pays)
	}
	return p
}

func (p *Pool) first() Caller { return p.held[0] }

// Choice reports whether there is more than one to choose from.
func (p *Pool) Choice() bool { return len(p.held) > 1 }

// Pick returns who pays: of those whose kind the operation takes, who are not presumed
// blind for the target, and who may be used now, in this order of importance, who pays
// at present, or who has clearly more left. Where some have been tried, others are worth
// a request only if they may be used and the operation takes their kind; then, and only
// then, it may be that there is nobody. Who is presumed blind is asked last.
//
// What an operation answers about its caller it answers about one account: that of
// the first who is taken for a person. No other account is asked in its place.
func (p *Pool) Pick(w Request, now time.Time) (Caller, bool) {
	list := p.suitable(w, now)
	if len(list) == 0 {
		return Caller{}, false
	}
	p.mu.Lock()
	class := cmp.Or(p.present[w.Resource], p.held[0].Class)
	p.mu.Unlock()
	at := slices.IndexFunc(list, func(c Caller) bool { return c.Class == class })
	chosen := list[max(0, at)]
	if w.Left != nil {
		chosen = list[most(max(0, at), list, w.Left)] // it may ask the store: not under the lock
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.Limited || len(w.Except) == 0 && at >= 0 { // else it is about this target only
			p.present[w.Resource] = chosen.Class
		}
	}
	return chosen, true
}

// suitable lists those that nothing better stands against, in their order.
func (p *Pool) suitable(w Request, now time.Time) (list []Caller) {
	best, must := 0, 0
	if len(w.Except) > 0 {
		must = usable + takes
	}
	for _, c := range p.eligible(w.Operation) {
		if slices.Contains(w.Except, c.Class) {
			continue
		}
		switch merit := p.health.merit(c.Caller, w, now); {
		case merit&must != must:
		case merit > best:
			best, list = merit, []Caller{c}
		case merit == best:
			list = append(list, c)
		}
	}
	return list
}

// eligible are those who may answer for the client: all, unless the answer is about
// the caller.
func (p *Pool) eligible(op *policy.Operation) []Caller {
	if !op.Personal {
		return p.held
	}
	first := max(0, slices.IndexFunc(p.held, func(c Caller) bool { return takesKind(op, c.Kind) }))
	account := p.held[first].Account
	return slices.DeleteFunc(slices.Clone(p.held), func(c Caller) bool { return c.Account != account })
}

// What speaks for a credential; the sum is its merit.
const (
	usable = 1 << iota // not in quarantine
	sees               // not presumed blind for the target: better no answer than a wrong one
	takes              // of a kind that the operation takes
)

func (c *Health) merit(who policy.Caller, w Request, now time.Time) (merit int) {
	if !c.confined(who.Class, now) {
		merit += usable
	}
	if takesKind(w.Operation, who.Kind) {
		merit += takes
	}
	if w.Operation.Personal || !c.blind(who.Class, w, now) {
		merit += sees
	}
	return merit
}

// takesKind reports whether an operation can be called by a kind of caller, as far as
// the documents tell: an OAuth app reads public data (Document B section 5.6), a
// person is who has an account of its own, and some operations refuse installations
// (Document A section 5.5).
func takesKind(op *policy.Operation, kind policy.CallerKind) bool {
	person := kind == policy.User || kind == policy.Enterprise
	switch {
	case op.Personal:
		return person
	case kind == policy.OAuthApp:
		return op.Safe() && (op.Auth == "optional" || !op.Known())
	case kind == policy.Installation || kind == policy.Workflow:
		return !slices.Contains(op.Refuses, string(policy.Installation))
	}
	return true
}

// clearly is how many times as much another must have left.
const clearly = 2

// most returns the index of who is to pay: the one at present, unless it has nothing
// left or another has clearly more.
func most(present int, list []Caller, left func(policy.Caller) (int, bool)) int {
	own, known := left(list[present].Caller)
	if !known {
		return present // nobody can tell
	}
	best, chosen := 0, present
	for i, c := range list {
		if n, known := left(c.Caller); known && n > best && (own <= 0 || n >= clearly*own) {
			best, chosen = n, i
		}
	}
	return chosen
}

// Authorization returns what a credential of the purse is shown to the upstream by. It
// may have to be asked for first. An error is [UnusableError], or the context's.
func (p *Pool) Authorization(ctx context.Context, class string) (Secret, error) {
	at := slices.IndexFunc(p.held, func(c Caller) bool { return c.Class == class })
	if at < 0 {
		return "", errForeign
	}
	c := p.held[at]
	if err := p.health.spend(class, c.name, time.Now()); err != nil {
		return "", err
	}
	if c.source == nil {
		return c.Authorization, nil
	}
	token, err := c.source.Token(ctx)
	if err != nil {
		p.health.unanswered(class, time.Now(), time.Now())
		return "", err
	}
	return "Bearer " + token, nil
}

// errForeign keeps a mistake in the code from becoming a leak.
var errForeign = errors.New("the client was not given that credential")

// OnResponse notes what the upstream has answered to a credential: a request that was sent
// at some time got a status, 0 where no answer came. A 401 counts where the documents tell that the operation
// takes such a credential: else any client could have one refused, for all who share it,
// by a call that wants another (GET /app wants an app's assertion).
func (p *Pool) OnResponse(who policy.Caller, op *policy.Operation, status int, sent, now time.Time) {
	switch {
	case status == 0:
		p.health.unanswered(who.Class, sent, now)
	case status == http.StatusUnauthorized:
		if op.Known() && takesKind(op, who.Kind) { // else it may be about the call, or is about the kind
			p.refused(who.Class, sent, now)
		}
	case status < http.StatusInternalServerError:
		p.health.accepted(who.Class, sent)
	}
}

// refused begins a quarantine, and gives up a token that does not last.
func (p *Pool) refused(class string, sent, now time.Time) {
	for _, c := range p.held {
		if c.Class != class {
			continue
		}
		p.health.refused(class, c.name, sent, now)
		if c.source != nil {
			c.source.Reject(sent)
		}
		return
	}
}

// OnHidden notes that a credential was told 403 or 404 for what is wanted, and whether
// another of the client's was told more.
func (p *Pool) OnHidden(who policy.Caller, w Request, status int, seen bool, now time.Time) {
	p.health.noteBlind(who.Class, w, status, seen, now)
}
