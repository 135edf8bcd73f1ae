package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/weirgate/weir/internal/config"
)

type auditCommand struct {
	File string `arg:"" help:"The configuration."`
}

// Run prints every risk of a configuration: how grave it is, where, why, and what to
// do. It fails if one is high, or if the file is not valid.
func (c *auditCommand) Run(p *process) error {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return &exit{exitUsage, err.Error()}
	}
	about, err := os.Stat(c.File)
	if err != nil {
		return &exit{exitUsage, err.Error()}
	}
	cfg, positions, err := config.ParseWithPositions(config.Source{Path: c.File, Getenv: p.getenv}, text)
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, problem := range problems {
			p.printf("%s\n", problem)
		}
		return &exit{exitFailure, fmt.Sprintf("%s: %s: what is not valid is not graded", c.File, count(len(problems), "mistake"))}
	}
	graded := map[config.Grade]int{}
	for _, found := range config.Assess(config.AuditedFile{Config: cfg, Positions: positions, Mode: about.Mode()}) {
		graded[found.Grade]++
		key := found.Key
		if key != "" {
			key += ": "
		}
		p.printf("%-6s  %s:%d:%d: %s%s\n        to do: %s\n", found.Grade, c.File, found.Line, found.Column, key, found.Why, found.Do)
	}
	p.printf("%s: %d high, %d medium, %d low\n", c.File, graded[config.High], graded[config.Medium], graded[config.Low])
	if n := graded[config.High]; n > 0 {
		return &exit{exitFailure, fmt.Sprintf("%s: %s", c.File, count(n, "high risk"))}
	}
	return nil
}
