package main

import (
	"errors"
	"strings"

	"github.com/weirgate/weir/internal/credential"
)

type keyCommand struct {
	New newKeyCommand `cmd:"" help:"Create a key for a client. The key is printed only once."`
}

type newKeyCommand struct {
	Name string `arg:"" optional:"" default:"NAME" help:"Name of the client in the configuration."`
}

// Run prints a new key, and the line for the configuration with its hash.
func (c *newKeyCommand) Run(p *process) error {
	if strings.TrimSpace(c.Name) == "" {
		return errors.New("create key: NAME is empty; use the name of the client, as in weir key new builds")
	}
	key, hash := credential.NewKey()
	p.printf("key for the client; Weir does not store it:\n  %s\n", key.Reveal())
	p.printf("line for clients in the configuration:\n  - {name: %q, key: %q, credentials: [NAME]}\n", c.Name, hash)
	return nil
}
