package config

import (
	"fmt"

	"go.yaml.in/yaml/v4"
)

// Masked returns the configuration as plain values by key, for people to look
// at: secrets are masked by their type, those in the store's URL are cut out.
func (c *Config) Masked() map[string]any {
	shown := *c
	shown.Store.URL = redacted(c.Store.URL)
	text, err := yaml.Dump(shown)
	if err != nil {
		panic(fmt.Sprintf("config: %v", err)) // plain data
	}
	var values map[string]any
	if err := yaml.Load(text, &values); err != nil {
		panic(fmt.Sprintf("config: %v", err))
	}
	return values
}
