package main

import "github.com/weirgate/weir/internal/config"

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
