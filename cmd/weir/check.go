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

// Run prints every mistake as FILE:LINE:COLUMN: KEY: MESSAGE.
func (c *checkCommand) Run(p *process) error {
	if _, err := os.Stat(c.File); err != nil {
		return &exit{exitUsage, fmt.Sprintf("%s: cannot be read", c.File)}
	}
	_, err := config.Load(config.Source{Path: c.File, Getenv: p.getenv})
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
