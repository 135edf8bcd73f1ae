package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/weirgate/weir/internal/config"
)

type checkCommand struct {
	File string `arg:"" help:"Configuration file."`
}

// Run prints each mistake as FILE:LINE:COLUMN: KEY: MESSAGE.
func (c *checkCommand) Run(p *process) error {
	if _, err := readConfig(p, c.File, ""); err != nil {
		return err
	}
	p.printf("%s: valid\n", c.File)
	return nil
}

type auditCommand struct {
	File string `arg:"" help:"Configuration file."`
}

// Run prints each risk with its place, its reason and a remedy. It fails if a risk is high or
// the configuration is invalid.
func (c *auditCommand) Run(p *process) error {
	file, err := readConfig(p, c.File, ": correct the configuration before the audit")
	if err != nil {
		return err
	}
	counts := map[config.Grade]int{}
	for _, found := range config.Assess(file) {
		counts[found.Grade]++
		key := found.Key
		if key != "" {
			key += ": "
		}
		p.printf("%-6s  %s:%d:%d: %s%s\n        to do: %s\n", found.Grade, c.File, found.Line, found.Column, key, found.Why, found.Do)
	}
	p.printf("%s: %d high, %d medium, %d low\n", c.File, counts[config.High], counts[config.Medium], counts[config.Low])
	if n := counts[config.High]; n > 0 {
		return &exit{exitFailure, fmt.Sprintf("%s: %s", c.File, count(n, "high risk"))}
	}
	return nil
}

// readConfig reads a configuration and prints its mistakes. If the file cannot be read, the error is a usage error. If
// the file has mistakes, the error ends with remedy.
func readConfig(p *process, file, remedy string) (config.AuditedFile, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return config.AuditedFile{}, &exit{exitUsage, err.Error()}
	}
	info, err := os.Stat(file)
	if err != nil {
		return config.AuditedFile{}, &exit{exitUsage, err.Error()}
	}
	cfg, positions, err := config.ParseWithPositions(config.Source{Path: file, Getenv: p.getenv}, text)
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, problem := range problems {
			p.printf("%s\n", problem)
		}
		err = &exit{exitFailure, file + ": " + count(len(problems), "mistake") + remedy}
	}
	return config.AuditedFile{Config: cfg, Positions: positions, Mode: info.Mode()}, err
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
