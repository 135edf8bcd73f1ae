package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/weirgate/weir/internal/admin"
)

type cacheCommand struct {
	Purge purgeCommand `cmd:"" help:"Have what is held validated before it is used again, or drop it."`
}

type purgeCommand struct {
	adminFlags
	Tag  string `xor:"what" required:"" help:"All with this tag: op:ID, repo:OWNER/NAME, org:ORG, account:NAME." placeholder:"TAG"`
	URL  string `name:"url" xor:"what" required:"" help:"One target, with any query." placeholder:"URL"`
	Hard bool   `help:"Drop it."`
}

// Run purges, and says how many entries that concerned.
func (c *purgeCommand) Run(p *process) error {
	listener, closing, err := c.listener(p)
	if err != nil {
		return err
	}
	defer closing()
	body, err := json.Marshal(admin.Purge{Tag: c.Tag, URL: c.URL, Hard: c.Hard})
	if err != nil {
		return err
	}
	text, _, err := listener.ask(p.ctx, http.MethodPost, "/api/v1/cache/purge", body)
	if err != nil {
		return err
	}
	var answer struct{ Entries int }
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("%s is not the admin listener of a Weir: %w", listener.base, err)
	}
	entries := fmt.Sprintf("%d entries", answer.Entries)
	if answer.Entries == 1 {
		entries = "1 entry"
	}
	if c.Hard {
		p.printf("%s dropped\n", entries)
	} else {
		p.printf("%s will be validated before they are used again\n", entries)
	}
	return nil
}
