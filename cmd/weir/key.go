package main

import "github.com/weirgate/weir/internal/credential"

// keyCommand is what there is to do about clients' keys.
type keyCommand struct {
	New newKeyCommand `cmd:"" help:"Make a key for a client of the gateway; it is shown this once."`
}

type newKeyCommand struct {
	Name string `arg:"" optional:"" default:"NAME" help:"Of the client, as the configuration will call it."`
}

// Run prints a key, and what stands for it in the configuration: the only
// time that anybody sees the key.
func (c *newKeyCommand) Run(p *process) error {
	key, hash := credential.NewKey()
	p.printf("key, for the client alone; it is kept nowhere:\n  %s\n", key.Reveal())
	p.printf("line under clients: in the configuration:\n  - {name: %q, key: %q, credentials: [NAME]}\n", c.Name, hash)
	return nil
}
