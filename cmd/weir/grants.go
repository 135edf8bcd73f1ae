package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/limits"
)

// grantsInterval is the interval at which a replica reads the grants of all replicas.
const grantsInterval = 2 * time.Second

// followGrants reads the grants of all replicas until ctx ends.
func (g *gateway) followGrants(ctx context.Context) {
	tick := time.NewTicker(grantsInterval)
	defer tick.Stop()
	for {
		_, _ = g.grants(ctx) // after an error, the known grants remain in force
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// grants returns the grants in force, and records the grants that have ended in the audit trail.
func (g *gateway) grants(ctx context.Context) ([]limits.Grant, error) {
	inForce, ended, err := g.store.Grants(ctx)
	for _, e := range ended {
		g.trail.Record(admin.Change{Operator: "time", Action: "end grant", Target: e.ID, Outcome: "ended " + e.String()})
	}
	return inForce, err
}

// grant stores a grant for a client or group of the configuration.
func (g *gateway) grant(ctx context.Context, r admin.Grant) (limits.Grant, error) {
	c := g.current.Load()
	length, err := time.ParseDuration(r.For)
	_, notNumber := strconv.Atoi(r.For)
	named := slices.ContainsFunc(c.config.Clients, func(entry config.Client) bool { return entry.Name == r.Client }) ||
		slices.ContainsFunc(c.config.Groups, func(entry config.Group) bool { return entry.Name == r.Client })
	switch {
	case !named:
		err = fmt.Errorf("%w: client: %q is not in clients or groups of the configuration", limits.ErrInvalidGrant, r.Client)
	case !c.callers.Shares(r.Client):
		err = fmt.Errorf("%w: client: %q shares no account with another client, so it already has the whole limit", limits.ErrInvalidGrant, r.Client)
	case !g.limiter.KnowsResource(r.Resource):
		err = fmt.Errorf("%w: resource: %q is unknown; use a name from weir budget --all, such as core", limits.ErrInvalidGrant, r.Resource)
	case err != nil && notNumber == nil:
		err = fmt.Errorf("%w: for: %q has no unit; use %sm", limits.ErrInvalidGrant, r.For, r.For)
	case err != nil:
		err = fmt.Errorf("%w: for: %q is not a duration; use for example 30m or 1h30m", limits.ErrInvalidGrant, r.For)
	}
	if err != nil {
		return limits.Grant{}, err
	}
	granted := limits.Grant{
		ID: rand.Text()[:8], Client: r.Client, Resource: r.Resource, Requests: r.Requests, Ends: time.Now().Add(length).UTC(),
	}
	return granted, c.ledger.Grant(ctx, granted)
}

// revoke ends a grant before its time.
func (g *gateway) revoke(ctx context.Context, id string) (limits.Grant, error) {
	return g.store.Revoke(ctx, id)
}

type grantCommand struct {
	adminFlags
	Client   string `arg:"" help:"Name of the client or group in the configuration."`
	Resource string `default:"core" help:"Resource whose requests are granted." placeholder:"NAME"`
	Requests int    `required:"" help:"Number of requests by which the guarantee and the limit rise." placeholder:"N"`
	For      string `required:"" help:"Time until the grant ends, at most 24h." placeholder:"DURATION"`
}

// Run stores a grant.
func (c *grantCommand) Run(p *process) error {
	a, err := c.client(p)
	if err != nil {
		return err
	}
	body, err := json.Marshal(admin.Grant{Client: c.Client, Resource: c.Resource, Requests: c.Requests, For: c.For})
	if err != nil {
		return err
	}
	var g limits.Grant
	if _, _, err := a.call(p.ctx, http.MethodPost, grantsPath, body, &g); err != nil {
		return err
	}
	p.printf("grant %s\n", printable(g.String(), 300))
	return nil
}

const grantsPath = "/api/v1/grants"

type grantsCommand struct {
	adminFlags
	JSON bool `name:"json" help:"Print the JSON of the admin listener."`
}

// Run prints the grants in force.
func (c *grantsCommand) Run(p *process) error {
	a, err := c.client(p)
	if err != nil {
		return err
	}
	var list []limits.Grant
	text, at, err := a.call(p.ctx, http.MethodGet, grantsPath, nil, &list)
	switch {
	case err != nil:
		return err
	case c.JSON:
		p.printf("%s", printableJSON(text))
		return nil
	case len(list) == 0:
		p.printf("no grant is in force\n")
		return nil
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "GRANT\tCLIENT\tRESOURCE\tREQUESTS\tENDS")
	for _, g := range list {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\tin %s\n", printable(g.ID, maxName), printable(g.Client, maxName), printable(g.Resource, maxName),
			g.Requests, shortDuration(g.Ends.Sub(at)))
	}
	return w.Flush()
}

type revokeCommand struct {
	adminFlags
	ID string `arg:"" name:"id" help:"ID of the grant, as in weir budget grants."`
}

// Run revokes a grant.
func (c *revokeCommand) Run(p *process) error {
	a, err := c.client(p)
	if err != nil {
		return err
	}
	var g limits.Grant
	if _, _, err := a.call(p.ctx, http.MethodDelete, grantsPath+"/"+url.PathEscape(c.ID), nil, &g); err != nil {
		return err
	}
	p.printf("revoked %s\n", printable(g.String(), 300))
	return nil
}
