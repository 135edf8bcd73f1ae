package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/policy"
)

// endingVersions returns a sentence for each client that has asked the running gateway of a configuration for a version of the
// API whose support ends. Without a running gateway, it returns nothing.
func endingVersions(ctx context.Context, p *process, c *config.Config) (found []string) {
	dialect := c.Upstream.MustDialect()
	if len(dialect.Ending) == 0 {
		return nil
	}
	client, err := (&adminFlags{Admin: c.Admin.Listen, Token: c.Admin.Token}).client(p)
	if err != nil {
		return nil
	}
	var costs history.Costs
	if _, _, err := client.call(ctx, http.MethodGet, "/api/v1/series", nil, &costs); err != nil {
		return nil
	}
	for _, s := range costs.Versions {
		i := slices.IndexFunc(dialect.Ending, func(e policy.Ending) bool { return e.Version == s.Version })
		if i >= 0 {
			found = append(found, fmt.Sprintf("%s asked for version %s of the API %d times in the last hour; its support may end from %s",
				printable(s.ClientLabel, maxName), s.Version, s.Requests, dialect.Ending[i].Since))
		}
	}
	return found
}
