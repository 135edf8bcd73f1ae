package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/weirgate/weir/internal/config"
)

type checkCommand struct {
	File string `arg:"" help:"The configuration."`
}

// Run prints every mistake as FILE:LINE:COLUMN: KEY: MESSAGE. A file that cannot be read is no invalid configuration, but
// none at all.
func (c *checkCommand) Run(p *process) error {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return &exit{exitUsage, err.Error()}
	}
	_, err = config.Parse(config.Source{Path: c.File, Getenv: p.getenv}, text)
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, problem := range problems {
			p.printf("%s\n", problem)
		}
		return &exit{exitFailure, fmt.Sprintf("%s: %s", c.File, count(len(problems), "mistake"))}
	}
	p.printf("%s: valid\n", c.File)
	return nil
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
