package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/policy"
)

type explainCommand struct {
	adminFlags
	Method  string `arg:"" optional:"" help:"For example GET."`
	Path    string `arg:"" optional:"" help:"For example /repos/acme/widgets/stats/participation, with its query."`
	Live    string `help:"In place of a call: a request that the running gateway has answered lately, by its Weir-Request-Id, or last. What it got, why, and what it went through." placeholder:"ID"`
	Config  string `help:"Configuration whose limits, cache rules and dialect apply." placeholder:"FILE"`
	Dialect string `help:"service or github, whatever the configuration says." placeholder:"NAME"`
}

// Run tells what the catalogue knows of a call, or what a gateway has made of one.
func (c *explainCommand) Run(p *process) error {
	switch {
	case c.Live != "" && c.Method != "":
		return &exit{exitUsage, "write a METHOD and a PATH, or --live ID"}
	case c.Live != "":
		return c.live(p)
	case c.Path == "":
		return &exit{exitUsage, "write a METHOD and a PATH, as in GET /user, or --live ID"}
	}
	rules, err := c.rules(p)
	if err != nil {
		return err
	}
	method := strings.ToUpper(c.Method)
	if u, err := url.Parse(c.Path); err == nil && u.Host != "" {
		return &exit{exitUsage, "write the path alone: " + u.RequestURI()}
	}
	path, query, _ := strings.Cut(c.Path, "?")
	if refusal := screened(method, path); refusal != "" {
		return &exit{exitFailure, refusal}
	}
	m, err := rules.catalogue.Classify(method, apiPath(path), query)
	var target *policy.TargetError
	if errors.As(err, &target) {
		return &exit{exitFailure, "refused with 400: " + target.Reason}
	}
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rules.explanation(m) {
		if row[1] != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
	}
	return w.Flush()
}

// rules are what a configuration makes of the catalogue.
type rules struct {
	catalogue *policy.Catalogue
	dialect   *policy.Dialect
	limits    policy.Limits
}

// rules are those of the file, or of a gateway without one.
func (c *explainCommand) rules(p *process) (*rules, error) {
	cfg := config.Default()
	if c.Config != "" {
		loaded, err := config.Load(config.Source{Path: c.Config, Getenv: p.getenv})
		if err != nil {
			return nil, err
		}
		cfg = loaded
	}
	dialect, err := policy.LoadDialect(cmp.Or(c.Dialect, cfg.Upstream.Dialect))
	if err != nil {
		return nil, &exit{exitUsage, "--dialect: " + err.Error()}
	}
	catalogue, err := cfg.Catalogue()
	if err != nil {
		return nil, err
	}
	return &rules{catalogue, dialect, cfg.Limits.Limits}, nil
}

// screened is what the gateway says to a call that it does not look at any
// further; empty for others.
func screened(method, path string) string {
	switch {
	case method == http.MethodConnect, method == http.MethodTrace:
		return "refused with 405: " + method + " is never sent upstream"
	case strings.HasPrefix(path, "/_weir/"):
		return "answered by Weir itself: what is below /_weir/ is never sent upstream"
	}
	return ""
}

// apiPath is the path of the API under any of the gateway's spellings of it.
func apiPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "/api/v3"); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	if path == "/api/graphql" {
		return "/graphql"
	}
	return path
}

// explanation is the rows of the table; those without a value are left out.
func (r *rules) explanation(m policy.Match) [][2]string {
	op := m.Operation
	section := op.Section
	if !op.Known() {
		section = "not in the documents: safe defaults"
	}
	target := m.Path
	if m.Query != "" {
		target += "?" + m.Query
	}
	cost := count(op.Points, "point")
	if op.CreatesContent {
		cost += ", creates content"
	}
	if op.Notifies {
		cost += ", sends notifications"
	}
	return [][2]string{
		{"operation", op.ID},
		{"section", section},
		{"route", op.Method + " " + op.Path},
		{"sent as", target},
		{"also as", r.mediaTypes(op)},
		{"resource", r.budget(op.Resource)},
		{"costs", cost},
		{"cache", cacheRule(op.Cache)},
		{"stale on", strings.Join(op.StaleOn, ", ")},
		{"makes stale", strings.Join(op.Invalidates, ", ")},
		{"authentication", op.Auth},
		{"refuses", strings.Join(op.Refuses, ", ")},
		{"role", op.Role},
		{"scope", op.Scope},
		{"permission", op.Permission},
		{"checks", strings.Join(op.Checks, ", ")},
		{"anonymous call", finding(m, policy.Unauthenticated)},
		{"with a token", finding(m, policy.User)},
	}
}

// mediaTypes are the other representations that a client may ask for.
func (r *rules) mediaTypes(op *policy.Operation) string {
	types := make([]string, len(op.Accept))
	for i, name := range op.Accept {
		types[i] = "application/vnd." + r.dialect.Vendor + "." + name + "+json"
	}
	return strings.Join(types, ", ")
}

// budget is a resource and what there is of it before the upstream has told
// its own number.
func (r *rules) budget(resource string) string {
	user, anonymous := r.limits.For(policy.User, resource), r.limits.For(policy.Unauthenticated, resource)
	return fmt.Sprintf("%s: %d in %s for a user, %d without a token", resource, user.Max, short(user.Window), anonymous.Max)
}

// short writes 1h for 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func cacheRule(r policy.CacheRule) string {
	switch r.Class {
	case policy.Shared:
		return "shared by all callers, fresh for " + short(r.TTL)
	case policy.PerCaller:
		return "for the same credential, fresh as the upstream says"
	case policy.Statistics:
		return "for the same credential; asked for again while the answer is 202"
	}
	return "never"
}

// finding is what preflight would answer, in place of the upstream.
func finding(m policy.Match, kind policy.CallerKind) string {
	f := m.Preflight(kind)
	if f == nil {
		return ""
	}
	return fmt.Sprintf("answered %d without being sent: %s (%s)", f.Status, f.Message, f.Check)
}
