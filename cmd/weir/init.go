package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/template"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
)

type initCommand struct {
	Out          string   `default:"weir.yaml" help:"File to write." placeholder:"FILE"`
	Upstream     string   `help:"Base URL of the API, such as https://api.github.com or https://HOST/api/v3." placeholder:"URL"`
	Dialect      string   `help:"service or github. Without the flag: github for api.github.com, hosts below ghe.com and the path /api/v3, service otherwise." placeholder:"NAME"`
	Credential   string   `help:"Credential for the upstream: token (one token of Weir), app (an installed app), or none (each program sends its own token)." placeholder:"KIND"`
	App          string   `help:"With --credential app: the number or client ID of the app." placeholder:"ID"`
	AppKey       string   `help:"With --credential app: PEM file with the private key of the app." placeholder:"FILE"`
	Installation int      `help:"With --credential app: the number of the installation." placeholder:"NUMBER"`
	Case         string   `help:"agents: settings for programs that share the credential and are not trusted: repositories, write limits, stored queries of gh, webhooks." placeholder:"NAME"`
	Repository   []string `help:"With --case agents: a repository that the agents may reach, OWNER/NAME with * for any characters, or ! before an exception; repeat the flag." placeholder:"PATTERN"`
	Issuer       string   `help:"With --case agents: URL of the issuer of the agents' tokens (JWT), instead of a key for each agent." placeholder:"URL"`
	Client       []string `help:"Name of a program that gets a key; repeat the flag for several." placeholder:"NAME"`
	Listen       string   `default:"127.0.0.1:8080" help:"Address for clients." placeholder:"ADDRESS"`
	Admin        string   `default:"127.0.0.1:9090" help:"Address of the admin listener." placeholder:"ADDRESS"`
	Store        string   `default:"memory:" help:"Store of the gateway: memory:, memory:/FILE, or a Redis URL." placeholder:"URL"`
}

// flagsOfInit are the flags that set the keys of a new configuration.
var flagsOfInit = map[string]string{
	"upstream.url": "--upstream", "upstream.dialect": "--dialect", "listen": "--listen", "admin.listen": "--admin", "store.url": "--store",
	"credentials[0].app.id": "--app", "credentials[0].app.key": "--app-key", "credentials[0].app.installation": "--installation",
}

// problemsOfFlags replaces the keys of the configuration in an error by the flags of the command, because the file does not exist yet.
func (c *initCommand) problemsOfFlags(err error) error {
	var problems config.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for i, problem := range problems {
		name := flagsOfInit[problem.Key]
		if strings.HasPrefix(problem.Key, "clients[") && strings.HasSuffix(problem.Key, "].name") {
			name = "--client"
		}
		if name != "" {
			problems[i] = config.Problem{Key: name, Message: problem.Message}
		}
	}
	return problems
}

// tokenEnv is the environment variable that contains the token of the upstream in a new configuration.
const tokenEnv = "UPSTREAM_TOKEN"

// Run writes a configuration that weir check accepts, and prints the keys and the next steps. At a terminal, Run
// prompts for the values that no flag gives.
func (c *initCommand) Run(p *process) error {
	if _, err := os.Stat(c.Out); err == nil {
		return fmt.Errorf("write %s: the file exists; choose another with --out, or remove it", c.Out)
	}
	if isTerminal(p.stdout) && isTerminal(os.Stdin) {
		// Nothing needs a shutdown yet, and a read from a terminal cannot be cancelled.
		signal.Reset(os.Interrupt)
		if err := c.prompt(p, os.Stdin); err != nil {
			return err
		}
	}
	if err := c.complete(); err != nil {
		return &exit{exitUsage, err.Error()}
	}
	keys := make([]newClient, len(c.Client))
	for i, name := range c.Client {
		keys[i].Name = name
		keys[i].key, keys[i].Hash = credential.NewKey()
	}
	var text strings.Builder
	if err := configTemplate.Execute(&text, struct {
		*initCommand
		Clients []newClient
	}{c, keys}); err != nil {
		return err
	}
	// The variable of the token need not be set yet.
	getenv := func(name string) (string, bool) {
		if name == tokenEnv {
			return "token", true
		}
		return p.getenv(name)
	}
	if _, err := config.Parse(config.Source{Path: c.Out, Getenv: getenv}, []byte(text.String())); err != nil {
		return c.problemsOfFlags(err)
	}
	if err := writeNewFile(c.Out, []byte(text.String()), 0o600, "choose another file with --out"); err != nil {
		return err
	}
	c.printNextSteps(p, keys)
	return nil
}

// Repositories returns the patterns of the agents' repositories as YAML.
func (c *initCommand) Repositories() string {
	list, _ := json.Marshal(c.Repository) // strings have JSON, which is YAML
	return string(list)
}

// newClient is a client with a new key.
type newClient struct {
	Name, Hash string
	key        credential.Secret
}

// prompt reads the missing values from a terminal.
func (c *initCommand) prompt(p *process, in io.Reader) error {
	lines := bufio.NewScanner(in)
	ended := false
	question := func(value *string, text, normal string) {
		if *value != "" || ended {
			return
		}
		p.printf("%s [%s]: ", text, normal)
		ended = !lines.Scan()
		*value = cmp.Or(strings.TrimSpace(lines.Text()), normal)
	}
	question(&c.Upstream, "Base URL of the API", "https://api.github.com")
	question(&c.Credential, "Credential for the upstream:\n  token  one token, which Weir holds\n  app    an installed app\n  none   each program sends its own token\nChoose", "token")
	if c.Credential == "app" {
		question(&c.App, "Number or client ID of the app", "")
		question(&c.AppKey, "PEM file with its private key", "app.pem")
		installation := ""
		if c.Installation == 0 {
			question(&installation, "Number of the installation", "")
			if _, err := fmt.Sscan(installation, &c.Installation); err != nil && !ended {
				return fmt.Errorf("read the installation: %q is not a number; use the number in the URL of the installation", installation)
			}
		}
	}
	if len(c.Client) == 0 && c.Credential != "none" {
		names := ""
		question(&names, "Programs that get a key, separated by spaces", "builds")
		c.Client = strings.Fields(names)
	}
	if c.Case == "agents" && len(c.Repository) == 0 {
		patterns := ""
		question(&patterns, "Repositories of the agents, separated by spaces, such as acme/*", "")
		c.Repository = strings.Fields(patterns)
	}
	if ended && lines.Err() == nil {
		return errors.New("read answers: the input ended, and no file was written; answer each question, or give flags")
	}
	return lines.Err()
}

// complete sets the dialect, and reports flags that do not fit together. [config.Parse] checks the values.
func (c *initCommand) complete() error {
	if c.Dialect == "" {
		c.Dialect, _, _ = config.Upstream{URL: c.Upstream}.InferDialect()
	}
	app := c.App != "" || c.AppKey != "" || c.Installation != 0
	switch {
	case c.Upstream == "":
		return errors.New("--upstream: required: the base URL of the API, such as https://api.github.com")
	case c.Credential == "":
		return errors.New("--credential: required; use token, app or none")
	case !slices.Contains([]string{"token", "app", "none"}, c.Credential):
		return fmt.Errorf("--credential: %q: use token, app or none", c.Credential)
	case c.Credential == "app" && (c.App == "" || c.AppKey == "" || c.Installation == 0):
		return errors.New("--credential app: add --app, --app-key and --installation")
	case c.Credential != "app" && app:
		return errors.New("--app, --app-key and --installation need --credential app")
	case c.Case != "" && c.Case != "agents":
		return fmt.Errorf("--case: %q: the only case is agents", c.Case)
	case c.Case == "agents" && c.Credential == "none":
		return errors.New("--case agents: needs --credential token or app, because agents have no token of the upstream")
	case c.Issuer != "" && c.Case != "agents":
		return errors.New("--issuer: needs --case agents")
	case c.Case == "agents" && len(c.Repository) == 0:
		return errors.New("--repository: required with --case agents: what the agents may reach, such as --repository 'acme/*'")
	case c.Case == "" && len(c.Repository) > 0:
		return errors.New("--repository: needs --case agents")
	case c.Credential == "none" && len(c.Client) > 0:
		return errors.New("--client: needs --credential token or app; with none each program sends its own token and needs no key")
	case c.Credential != "none" && len(c.Client) == 0 && c.Issuer == "":
		return errors.New("--client: required: the name of a program that gets a key, such as --client builds")
	}
	return nil
}

var configTemplate = template.Must(template.New("").Parse(`# Check changes with weir check. docs/configuration.md has all settings.
listen: {{printf "%q" .Listen}}
admin: {listen: {{printf "%q" .Admin}}}
upstream: {url: {{printf "%q" .Upstream}}, dialect: {{.Dialect}}}
store: {url: {{printf "%q" .Store}}}
{{- if eq .Credential "token"}}
credentials:
  # The name after account is for people. Credentials of one user need the same account.
  - {name: main, kind: user, account: main, token: "${` + tokenEnv + `}"}
{{- else if eq .Credential "app"}}
credentials:
  - {name: main, kind: installation, app: {id: {{printf "%q" .App}}, key: {{printf "%q" (print "file:" .AppKey)}}, installation: {{.Installation}}}}
{{- end}}
{{- if .Issuer}}
issuers: [{name: runs, url: {{printf "%q" .Issuer}}, audiences: [weir]}]
{{- end}}
{{- $agents := eq .Case "agents"}}
{{- if $agents}}
# Agents reach only these repositories, also by gh. An agent may have another list; clients[].organizations adds members and teams.
{{- end}}
{{- if or .Clients .Issuer}}
clients:
{{- range .Clients}}
  - {name: {{printf "%q" .Name}}, key: "{{.Hash}}", credentials: [main]{{if $agents}}, priority: batch, limit: 0.5, writes: {per_minute: 10, per_hour: 100},
     repositories: {{$.Repositories}}{{end}}}
{{- end}}
{{- end}}
{{- if .Issuer}}
  # Each run is a tag with limits of its own. Name the agents' subjects: every token that matches sub becomes this client.
  # With repositories: CLAIM in jwt, the token of a run names its repositories among these.
  - name: agents
    jwt: {issuer: runs, claims: {sub: "agent:*"}, tag: sub}
    credentials: [main]
    priority: batch
    limit: 0.5
    tag_limit: 0.2
    repositories: {{.Repositories}}
    writes: {per_minute: 60, per_hour: 400}
    tag_writes: {per_minute: 10, per_hour: 100}
{{- end}}
{{- if $agents}}
# Identical queries of gh cost one call. Webhooks make stored responses stale at once: set WEBHOOK_SECRET (docs/cache.md#webhooks).
cache: {graphql: {gh: true}}
webhooks: {secret: "${WEBHOOK_SECRET:-}"}
{{- end}}
# With pass_through, programs may send their own tokens.
callers: {pass_through: {{eq .Credential "none"}}}
`))

// printNextSteps prints the keys of the clients, and how to start the gateway and to point programs at it.
func (c *initCommand) printNextSteps(p *process, keys []newClient) {
	p.printf("wrote %s, a valid configuration\n", c.Out)
	key := "TOKEN"
	if len(keys) > 0 {
		key = "KEY"
		p.printf("\nkeys of the clients; Weir stores only their hashes, so keep them now:\n")
		for _, k := range keys {
			p.printf("  %-16s  %s\n", k.Name, k.key.Reveal())
		}
	}
	if c.Case == "agents" {
		p.printf("\nkeep the agents without a network and a token of the upstream: docs/recipes/agents.md\n")
	}
	p.printf("\nstart the gateway:\n")
	program := os.Args[0] // as the user has called it, because it may not be in PATH
	if c.Credential == "token" {
		p.printf("  %-28s  # the token of the upstream\n", "export "+tokenEnv+"=...")
	}
	p.printf("  %-28s  # checks the upstream, the clock and the credentials\n", program+" doctor "+c.Out)
	p.printf("  %s serve --config %s\n", program, c.Out)
	base, err := listenerURL(c.Listen)
	if err != nil { // a Unix socket
		p.printf("\npoint programs at its socket: docs/proxy.md\n")
		return
	}
	p.printf("\npoint programs at it (docs/clients.md, docs/recipes/README.md):\n")
	p.printf("  curl       curl -H \"Authorization: Bearer %s\" %s/rate_limit\n", key, base)
	p.printf("  octokit    new Octokit({ baseUrl: %q, auth: %s })\n", base, key)
	p.printf("  go-github  base := %q; github.NewClient(github.WithAuthToken(%s), github.WithURLs(&base, &base))\n", base+"/", key)
	p.printf("  PyGithub   github.Github(%s, base_url=%q)\n", key, base)
	p.printf("  gh         needs HTTPS or a Unix socket: docs/clients.md, docs/proxy.md\n")
}
