package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirgate/weir/internal/config"
)

type checkCommand struct {
	File string `arg:"" help:"Configuration file."`
	JSON bool   `name:"json" help:"Print one JSON array with all mistakes."`
}

// Run prints each mistake as FILE:LINE:COLUMN: KEY: MESSAGE.
func (c *checkCommand) Run(p *process) error {
	file, problems, err := readConfig(p, c.File)
	switch {
	case err != nil:
		return err
	case c.JSON:
		if err := printJSON(p, problems); err != nil {
			return err
		}
		return invalid(io.Discard, c.File, problems, "")
	case len(problems) > 0:
		return invalid(p.stdout, c.File, problems, "")
	}
	p.printf("%s: valid\n", c.File)
	if found, remedy := file.Config.Bypass(); found != "" {
		p.printf("%s: warning: %s; %s\n", c.File, found, remedy)
	}
	return nil
}

type auditCommand struct {
	File string `arg:"" help:"Configuration file."`
	JSON bool   `name:"json" help:"Print one JSON array with all risks."`
}

// Run prints each risk with its place, its reason and a remedy. It fails if a risk is high or
// the configuration is invalid.
func (c *auditCommand) Run(p *process) error {
	file, problems, err := readConfig(p, c.File)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return invalid(p.messages(c.JSON), c.File, problems, ": correct the configuration before the audit")
	}
	risks := config.Assess(file)
	for _, found := range endingVersions(p.ctx, p, file.Config) {
		risks = append(risks, config.Finding{Grade: config.Low, Line: 1, Column: 1, Why: found, Do: "update the client, or let it send a newer version header"})
	}
	counts := map[config.Grade]int{}
	for _, found := range risks {
		counts[found.Grade]++
		if c.JSON {
			continue
		}
		key := found.Key
		if key != "" {
			key += ": "
		}
		p.printf("%-6s  %s:%d:%d: %s%s\n        to do: %s\n", found.Grade, c.File, found.Line, found.Column, key, found.Why, found.Do)
	}
	if c.JSON {
		if err := printJSON(p, risks); err != nil {
			return err
		}
	} else {
		p.printf("%s: %d high, %d medium, %d low\n", c.File, counts[config.High], counts[config.Medium], counts[config.Low])
	}
	if n := counts[config.High]; n > 0 {
		return &exit{exitFailure, fmt.Sprintf("%s: %s", c.File, count(n, "high risk"))}
	}
	return nil
}

// readConfig reads a configuration and returns its mistakes. If the file cannot be read, the error is a usage error.
func readConfig(p *process, file string) (config.AuditedFile, config.Problems, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return config.AuditedFile{}, nil, &exit{exitUsage, err.Error()}
	}
	info, err := os.Stat(file)
	if err != nil {
		return config.AuditedFile{}, nil, &exit{exitUsage, err.Error()}
	}
	cfg, positions, err := config.ParseWithPositions(config.Source{Path: file, Getenv: p.getenv}, text)
	problems := config.Problems{} // an empty JSON array
	if errors.As(err, &problems) {
		err = nil
	}
	return config.AuditedFile{Config: cfg, Positions: positions, Mode: info.Mode()}, problems, err
}

// invalid prints the mistakes of a configuration, and returns an error with their number and the remedy. It returns nil
// if there are no mistakes.
func invalid(w io.Writer, file string, problems config.Problems, remedy string) error {
	if len(problems) == 0 {
		return nil
	}
	for _, problem := range problems {
		_, _ = fmt.Fprintln(w, problem)
	}
	return &exit{exitFailure, file + ": " + count(len(problems), "mistake") + remedy + "; see docs/configuration.md#reference"}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

type schemaCommand struct{}

// Run prints the schema.
func (*schemaCommand) Run(p *process) error {
	text, err := config.Schema()
	if err != nil {
		return err
	}
	p.printf("%s", text)
	return nil
}
