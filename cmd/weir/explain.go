package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/policy"
)

type explainCommand struct {
	adminFlags
	Method  string `arg:"" optional:"" help:"For example GET."`
	Path    string `arg:"" optional:"" help:"For example /repos/acme/widgets/stats/participation, with its query."`
	Live    string `help:"Explain a recent request of the running gateway instead: its Weir-Request-Id, or last." placeholder:"ID"`
	Client  string `help:"Name of a client of the configuration: prints whether its scope permits the call." placeholder:"NAME"`
	Query   string `help:"File with a GraphQL query or request body, to price it." placeholder:"FILE" type:"path"`
	Config  string `help:"Configuration file with limits, cache rules and dialect." placeholder:"FILE"`
	Dialect string `help:"service or github. Overrides the configuration." placeholder:"NAME"`
}

// Run prints how the gateway treats a call, or how it answered a request.
func (c *explainCommand) Run(p *process) error {
	switch {
	case c.Live != "" && c.Method != "":
		return &exit{exitUsage, "give either METHOD and PATH, or --live ID"}
	case c.Live != "":
		return c.explainRequest(p)
	case c.Path == "":
		return &exit{exitUsage, "give METHOD and PATH, as in GET /user, or --live ID"}
	}
	return c.explainCall(p)
}

// explainCall prints the data of the catalogue about a call. It sends no request.
func (c *explainCommand) explainCall(p *process) error {
	cfg, dialect, catalogue, err := loadCatalogue(p, c.Config, c.Dialect)
	if err != nil {
		return err
	}
	if u, err := url.Parse(c.Path); err == nil && u.Host != "" {
		return &exit{exitUsage, "give the path without the host: " + u.RequestURI()}
	}
	method := strings.ToUpper(c.Method)
	path, query, _ := strings.Cut(c.Path, "?")
	switch {
	case method == http.MethodConnect, method == http.MethodTrace:
		return &exit{exitFailure, "refused with 405: " + method + " is never forwarded"}
	case strings.HasPrefix(path, "/_weir/"):
		return &exit{exitFailure, "answered by Weir: paths below /_weir/ are never forwarded"}
	}
	m, err := catalogue.Classify(method, apiPath(path), query)
	var target *policy.TargetError
	if errors.As(err, &target) {
		return &exit{exitFailure, "refused with 400: " + target.Reason}
	}
	if err != nil {
		return err
	}
	rows := callRows(catalogue, m, dialect, cfg.Limits.Limits)
	if c.Query != "" {
		if m.Operation.Resource != policy.GraphQL {
			return &exit{exitUsage, "--query needs a GraphQL call: weir explain POST /graphql --query FILE"}
		}
		body, err := readQuery(c.Query)
		if err != nil {
			return err
		}
		rows = append(rows, queryRows(body, &cfg.Cache.GraphQL)...)
	}
	verdict, err := c.scopeOf(cfg, m)
	if err != nil {
		return err
	}
	rows = append(rows, [2]string{"names", describeNames(m)}, [2]string{"scope of " + c.Client, verdict})
	return printRows(p.stdout, rows)
}

// describeNames returns the repositories and owners that the target of a call names. A number counts as its own name.
func describeNames(m policy.Match) string {
	if m.Operation.Resource == policy.GraphQL {
		return "those in the query"
	}
	n, err := m.Named(nil, nameOfNumber)
	if err != nil {
		return err.Error()
	}
	var all []string
	for kind, names := range map[string][]string{"repository ": n.Repositories, "organization or user ": n.Owners, "all repositories of ": slices.Concat(n.Whole, n.Wide)} {
		for _, name := range names {
			all = append(all, kind+name)
		}
	}
	slices.Sort(all)
	if m.NamesInBody() {
		all = append(all, "those in the body")
	}
	if n.Others != "" {
		all = append(all, "others: "+n.Others)
	}
	return strings.Join(all, ", ")
}

// nameOfNumber replaces the name behind a number, which only the API knows.
func nameOfNumber(kind policy.IDs, id string) (string, error) {
	if kind == policy.RepositoryIDs {
		return "number/" + id, nil
	}
	return "number-" + id, nil
}

// scopeOf returns the decision of the scope of the client about a target without a body.
func (c *explainCommand) scopeOf(cfg *config.Config, m policy.Match) (string, error) {
	if c.Client == "" {
		return "", nil
	}
	i := slices.IndexFunc(cfg.Clients, func(client config.Client) bool { return client.Name == c.Client })
	if i < 0 {
		return "", &exit{exitUsage, fmt.Sprintf("--client: %q is not a client of the configuration; give --config FILE, and one of its clients", c.Client)}
	}
	scope := cfg.Clients[i].Scope()
	switch {
	case !scope.Allows(m.Operation.Method, m.Operation):
		return "refused with 403: methods or operations do not permit " + m.Operation.ID, nil
	case !scope.LimitsNames():
		return "permitted", nil
	case m.Operation.Resource == policy.GraphQL:
		return "depends on the query", nil
	}
	var number string
	n, refused := m.Named(nil, func(_ policy.IDs, id string) (string, error) {
		number = id
		return "", errors.New("the name behind a number is unknown")
	})
	if number != "" {
		return "depends on the name behind the number " + number, nil
	}
	if refused == nil {
		refused = scope.Permits(m.Operation, n)
	}
	if refused != nil {
		return "refused with 403: " + refused.Error(), nil //nolint:nilerr // the refusal is the result
	}
	return "permitted", nil
}

// readQuery reads a file with a GraphQL query or with a request body in JSON, and returns the request body.
func readQuery(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--query: %w%s", err, config.FileRemedy(err))
	}
	if json.Valid(text) {
		return text, nil
	}
	return json.Marshal(map[string]string{"query": string(text)})
}

// queryRows describes the GraphQL query of a request body, and the rule that stores its response.
func queryRows(body []byte, rules *policy.GraphQLCache) [][2]string {
	call, err := policy.ParseGraphQL(body)
	rows := [][2]string{
		{"query", strings.TrimSpace(call.Kind + " " + call.Operation)},
		{"root fields", strings.Join(call.RootFields, ", ")},
		{"primary cost", fmt.Sprintf("at most %d, for %d requests of connections", call.Cost, call.Requests)},
		{"nodes", fmt.Sprintf("at most %d", call.Nodes)},
		{"depth", strconv.Itoa(call.Depth)},
		{"repositories", strings.Join(call.Repositories, ", ")},
		{"persisted", call.Persisted},
		{"response", queryRule(call, rules)},
	}
	switch {
	case err != nil:
		rows = append(rows, [2]string{"refused", err.Error()})
	case call.Kind == "":
		return [][2]string{{"query", "unreadable; counts as a mutation"}}
	}
	return rows
}

// queryRule describes whether the response to a GraphQL call is shared and stored, and by which rule.
func queryRule(call *policy.GraphQLCall, rules *policy.GraphQLCache) string {
	rule, stored := rules.RuleFor(call)
	switch {
	case call.Question == "":
		return "neither shared nor stored"
	case !stored:
		return "shared by identical queries in progress; not stored, because no rule of cache.graphql matches"
	}
	by := "field " + rule.Field
	if rule.Operation != "" {
		by = "operation " + rule.Operation
	}
	list := "cache.graphql.gh"
	if slices.Contains(rules.Rules, rule) {
		list = "cache.graphql.rules"
	}
	return fmt.Sprintf("stored for %s by the rule for %s in %s", durations.Text(rule.TTL), by, list)
}

// apiPath removes the prefix that the gateway accepts before the paths of the API.
func apiPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "/api/v3"); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return path
}

// printRows prints a table of names and values. Rows without a value are omitted.
func printRows(out io.Writer, rows [][2]string) error {
	const maxValue = 1000
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		if r[1] != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", r[0], printable(r[1], maxValue))
		}
	}
	return w.Flush()
}

func callRows(catalogue *policy.Catalogue, m policy.Match, dialect *policy.Dialect, limits policy.Limits) [][2]string {
	op := m.Operation
	section := op.Section
	switch {
	case !op.Known():
		section = "not in the catalogue: safe defaults"
	case op.Category != "":
		section = op.Category + ", from the published description"
	}
	at := m.Collection()
	var staleOn, makesStale []string
	switch {
	case op.Cache.Class == policy.Query:
		staleOn, makesStale = []string{"every event, and every write of the repository or organization"}, []string{"the caller's queries, and queries that name or show the nodes and repositories in the arguments"}
	case op.Safe():
		staleOn = catalogue.EventsOf(at)
	default:
		makesStale = catalogue.ChangedBy(m)
	}
	target := m.Path
	if m.Query != "" {
		target += "?" + m.Query
	}
	cost := count(op.Points, "point")
	switch {
	case op.Content == "unsure":
		cost += ", may create content"
	case op.CreatesContent:
		cost += ", creates content"
	}
	if op.Notifies {
		cost += ", sends notifications"
	}
	types := make([]string, len(op.Accept))
	for i, name := range op.Accept {
		types[i] = "application/vnd." + dialect.Vendor + "." + name + "+json"
	}
	user, anonymous := limits.For(policy.User, op.Resource), limits.For(policy.Unauthenticated, op.Resource)
	return [][2]string{
		{"operation", op.ID},
		{"section", section},
		{"route", op.Method + " " + op.Path},
		{"sent as", target},
		{"also as", strings.Join(types, ", ")},
		{"resource", fmt.Sprintf("%s: %d in %s for a user, %d without a token",
			op.Resource, user.Max, durations.Text(user.Window), anonymous.Max)},
		{"costs", cost},
		{"cache", cacheRule(op.Cache)},
		{"collection", at.String()},
		{"stale on", groupEvents(staleOn)},
		{"webhooks.fresh needs", groupEvents(catalogue.DecidedBy(op))},
		{"makes stale", groupTags(makesStale)},
		{"authentication", op.Auth},
		{"refuses", strings.Join(op.Refuses, ", ")},
		{"role", op.Role},
		{"scope", op.Scope},
		{"permission", op.Permission},
		{"checks", strings.Join(op.Checks, ", ")},
		{"anonymous call", preflight(m, policy.Unauthenticated)},
		{"with a token", preflight(m, policy.User)},
	}
}

// groupEvents joins the names of events. Names that continue another name follow it with their ends only, as in
// "pull_request (also _review, _review_thread)".
func groupEvents(names []string) string {
	if !slices.IsSorted(names) {
		names = slices.Sorted(slices.Values(names))
	}
	var groups []string
	for i := 0; i < len(names); {
		first, ends := names[i], []string(nil)
		for i++; i < len(names) && strings.HasPrefix(names[i], first+"_"); i++ {
			ends = append(ends, strings.TrimPrefix(names[i], first))
		}
		if len(ends) > 0 {
			first += " (also " + strings.Join(ends, ", ") + ")"
		}
		groups = append(groups, first)
	}
	return strings.Join(groups, ", ")
}

// groupTags joins tags in the notation of shells, as in repo:acme/widgets/{issues,pulls}.
func groupTags(tags []string) string {
	byOwner, owners := map[string][]string{}, []string(nil)
	for _, tag := range tags {
		end := strings.LastIndexByte(tag, '/') + 1
		owner := tag[:end]
		if byOwner[owner] == nil {
			owners = append(owners, owner)
		}
		byOwner[owner] = append(byOwner[owner], tag[end:])
	}
	for i, owner := range owners {
		if names := byOwner[owner]; len(names) > 1 && owner != "" {
			owners[i] += "{" + strings.Join(names, ",") + "}"
		} else {
			owners[i] += strings.Join(names, ", ")
		}
	}
	return strings.Join(owners, ", ")
}

func cacheRule(r policy.CacheRule) string {
	switch r.Class {
	case policy.Shared:
		return "shared by all callers, fresh for " + durations.Text(r.TTL)
	case policy.Immutable:
		return "for the same credential, fresh for " + durations.Text(r.TTL) + " if the path ends with a full hash"
	case policy.PerCaller:
		return "for the same credential, fresh as the upstream says"
	case policy.Statistics:
		return "for the same credential; polled while the response is 202"
	case policy.Query:
		return "queries for the same credential, by the rules of cache.graphql; mutations never"
	}
	return "never"
}

// preflight returns the response of the gateway's own checks, or "" if the call is forwarded.
func preflight(m policy.Match, kind policy.CallerKind) string {
	f := m.Preflight(kind)
	if f == nil {
		return ""
	}
	return fmt.Sprintf("answered %d without being sent: %s (%s)", f.Status, f.Message, f.Check)
}

// explainRequest prints a recent request of the running gateway.
func (c *explainCommand) explainRequest(p *process) error {
	admin, err := c.client(p)
	if err != nil {
		return err
	}
	var recent []history.Request // the newest request
	if _, _, err := admin.call(p.ctx, http.MethodGet, "/api/v1/requests", nil, &recent); err != nil {
		return err
	}
	i := slices.IndexFunc(recent, func(r history.Request) bool {
		return r.ID == c.Live || c.Live == "last" && !r.Background
	})
	if i < 0 {
		return &exit{exitFailure, fmt.Sprintf("%s is not among the last %d requests of this gateway: try the other replicas",
			c.Live, len(recent))}
	}
	r := recent[i]
	spent := ""
	if r.Spent > 0 {
		spent = strconv.Itoa(r.Spent) + " of " + r.Resource
	}
	rows := [][2]string{
		{"request", r.ID},
		{"began", r.Start.UTC().Format(time.RFC3339Nano)},
		{"call", r.Method + " " + r.Route},
		{"operation", r.Operation},
		{"graphql", r.Query},
		{"client", r.Client},
		{"tag", r.Tag},
		{"account", cmp.Or(r.AccountLabel, r.Account)},
		{"response", fmt.Sprintf("%d in %s, %d bytes", r.Status, durations.Text(r.Elapsed), r.Bytes)},
		{"result", string(r.Result)},
		{"why", r.Why},
		{"cache-status", r.Cache},
		{"spent", spent},
		{"withheld fields", strings.Join(r.Withheld, ", ")},
		{"error", r.Error},
		{"trace", r.Trace},
	}
	for _, s := range r.Stages {
		stage := s.Name + " " + durations.Text(s.Elapsed)
		if s.Detail != "" {
			stage += ": " + s.Detail
		}
		if s.Failed {
			stage += ", failed"
		}
		rows = append(rows, [2]string{"after " + durations.Text(s.Start), stage})
	}
	return printRows(p.stdout, rows)
}
