package main

import (
	"fmt"
	"net/http"
)

// healthCommand is what an image without a shell checks itself by.
type healthCommand struct {
	adminFlags
}

// Run asks the gateway of the admin listener whether it can answer clients.
func (c *healthCommand) Run(p *process) error {
	admin, closing, err := c.listener(p)
	if err != nil {
		return err
	}
	defer closing()
	text, _, err := admin.ask(p.ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	if string(text) != "ok\n" {
		return fmt.Errorf("%s is not the admin listener of a Weir: its answer to /readyz is not ok", admin.base)
	}
	p.printf("ready\n")
	return nil
}
