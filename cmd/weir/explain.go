package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/weirgate/weir/policy"
)

type explainCommand struct {
	Method string `arg:"" help:"For example GET."`
	Path   string `arg:"" help:"For example /repos/acme/widgets/stats/participation, with its query."`
}

// Run tells what the catalogue knows of a call.
func (c *explainCommand) Run(p *process) error {
	path, query, _ := strings.Cut(c.Path, "?")
	m, err := policy.Embedded().Classify(strings.ToUpper(c.Method), path, query)
	var target *policy.TargetError
	if errors.As(err, &target) {
		return &exit{exitFailure, "refused with 400: " + target.Reason}
	}
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, row := range explanation(m) {
		if row[1] != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
	}
	return w.Flush()
}

// explanation is the rows of the table; those without a value are left out.
func explanation(m policy.Match) [][2]string {
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
		{"resource", op.Resource},
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

func cacheRule(r policy.CacheRule) string {
	switch r.Class {
	case policy.Shared:
		return "shared by all callers, fresh for " + r.TTL.String()
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
