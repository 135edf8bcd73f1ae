package service

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// seed creates the initial state. The state has the organization acme, its repositories, and the users of the tokens.
// It has enough watchers and members for lists of several pages.
func seed(n uint64, now time.Time) *world {
	s := &seeder{random: rand.New(rand.NewPCG(n, 1)), now: now.Truncate(time.Hour)}
	w := &world{objects: newObjects(now.UTC().Truncate(time.Second)), apps: map[string]int{}, tokens: tokens(), accounts: map[string]*account{}}
	acme := s.people(w)
	widgets := s.repository(w, acme, 1001, "widgets", "Mechanical parts", "Go", false)
	s.commits(widgets, widgetFiles(), 400, 70)
	s.seedIssues(w, widgets)
	s.watchers(w, widgets)
	s.tags(widgets)
	s.advisories(widgets)
	secret := s.repository(w, acme, 1002, "secret", "A private repository", "Go", true)
	s.commits(secret, map[string]string{"README.md": "# secret\n", "vault.go": "package vault\n\n// Key opens the vault.\nconst Key = \"widget\"\n"}, 60, 20)
	s.advisories(secret)
	s.repository(w, acme, 1003, "empty", "A repository without commits", "", false)
	monolith := s.repository(w, acme, 1004, "monolith", "A large repository", "Go", false)
	monolith.pushed, monolith.fill = s.now, func() { s.monolith(n, w, monolith) }
	s.properties(w.repositories)
	s.rulesets(w, acme, widgets)

	s.organizations(w, acme)
	s.teams(w, acme)
	s.roles(acme)
	s.invitations(w, acme)

	s.configurations(w, acme, widgets, secret)

	s.migrations(w, acme, widgets, secret)

	s.seedPulls(w, widgets, 12)
	s.seedPulls(w, secret, 2)
	w.seedObjects(w.started)
	return w
}

// monolithIDs precedes the IDs of the objects of monolith, and 10,000 follows them. The IDs of other objects therefore do
// not depend on the first use of monolith.
const monolithIDs = 5000

// monolith adds the commits and pull requests of the large repository.
func (s *seeder) monolith(n uint64, w *world, r *repository) {
	own, lastID := &seeder{random: rand.New(rand.NewPCG(n, 2)), now: s.now}, w.lastID
	w.lastID = monolithIDs
	own.commits(r, map[string]string{"README.md": "# monolith\n"}, 12_000, 100)
	own.seedPulls(w, r, 300)
	w.lastID = lastID
}

type seeder struct {
	random *rand.Rand
	now    time.Time
}

const (
	watchers = 64
	members  = 40
)

// people creates the users and the organization acme, and returns the organization.
func (s *seeder) people(w *world) *account {
	owner, member := w.addAccount("acme-owner", "Owner of Acme"), w.addAccount("acme-member", "Member of Acme")
	w.addAccount("outsider", "Outsider")
	acme := w.addAccount("acme", "Acme")
	acme.members = map[string]*membership{
		owner.login:  {user: owner, admin: true, public: true, twoFactor: true},
		member.login: {user: member, twoFactor: true},
	}
	for i := range members {
		u := w.addAccount(fmt.Sprintf("builder-%02d", i+1), fmt.Sprintf("Builder %d", i+1))
		acme.members[u.login] = &membership{user: u, public: i%4 != 0, twoFactor: i%10 != 0, securityManager: i == 0}
	}
	for i := range watchers {
		w.addAccount(fmt.Sprintf("watcher-%02d", i+1), fmt.Sprintf("Watcher %d", i+1))
	}
	return acme
}

// addAccount creates an account with the next ID.
func (w *world) addAccount(login, name string) *account {
	a := &account{id: len(w.accounts) + 1, login: login, name: name, email: login + "@example.com"}
	w.accounts[login] = a
	w.byID = append(w.byID, a)
	return a
}

func (s *seeder) repository(w *world, owner *account, id int, name, description, language string, private bool) *repository {
	r := &repository{
		id: id, owner: owner, name: name, description: description, language: language, private: private,
		defaultBranch: mainBranch, created: s.now.AddDate(-2, 0, 0), pushed: s.now.AddDate(-2, 0, 0), fields: doc{},
		git: newGit(),
	}
	w.repositories = append(w.repositories, r)
	return r
}

// commits adds n commits of files that are spread over the last weeks. The time of the last commit is now.
func (s *seeder) commits(r *repository, files map[string]string, n, weeks int) {
	zones := []*time.Location{time.UTC, time.FixedZone("", 2*3600), time.FixedZone("", -7*3600)}
	var authors []*account
	for _, login := range sortedMembers(r.owner)[:6] {
		authors = append(authors, r.owner.members[login].user)
	}
	span := time.Duration(weeks) * 7 * 24 * time.Hour
	r.git.commits = make(map[string]*commit, n)
	tree := r.git.treeOf(files)
	for i := range n {
		at := s.now.Add(-span / time.Duration(n) * time.Duration(n-1-i))
		c := commit{
			tree: tree, author: authors[s.random.IntN(len(authors))], at: at.In(zones[s.random.IntN(len(zones))]),
			additions: s.random.IntN(80), deletions: s.random.IntN(40),
			message: fmt.Sprintf("%s the %s", pickText(s, "fix", "add", "remove", "polish"), pickText(s, "gear", "lever", "spring", "widget")),
		}
		switch s.random.IntN(20) {
		case 0:
			c.merge, c.message = true, "merge branch"
		case 1:
			c.additions, c.deletions = 0, 0
		}
		c.sha = hashOf(uint64(r.id), uint64(i), s.random.Uint64())
		r.git.grow(c)
		r.pushed = at
	}
}

func pickText(s *seeder, from ...string) string { return from[s.random.IntN(len(from))] }

// hashOf derives 40 hexadecimal digits from numbers, in the form of a Git object name.
func hashOf(parts ...uint64) string {
	var b []byte
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, p)
	}
	sum := sha1.Sum(b)
	return hex.EncodeToString(sum[:])
}

// widgetFiles returns the content of the files of widgets.
func widgetFiles() map[string]string {
	files := map[string]string{
		"README.md":         "# widgets\n\nA widget is a part that fits. Each widget has a gear.\n",
		"docs/README.md":    "# Documentation\n",
		"gear/gear.go":      "package gear\n\n// Turn turns the gear of a widget once.\nfunc Turn() {}\n",
		"gear/gear_test.go": "package gear\n\nimport \"testing\"\n\nfunc TestTurn(t *testing.T) { Turn() }\n",
		"lever/lever.py":    "def pull():\n    \"\"\"Pull the lever.\"\"\"\n",
		"assets/widget.svg": strings.Repeat("<svg/>\n", maxSearchedFileSize/7+1),
	}
	for i := range 40 {
		files[fmt.Sprintf("parts/part%02d.go", i)] = fmt.Sprintf("package parts\n\n// Part%02d belongs to a widget.\nconst Part%02d = %d\n", i, i, i)
	}
	return files
}

// tags creates one tag with a valid signature and one unsigned tag.
func (s *seeder) tags(r *repository) {
	release := func(n int, name, message string) *gitTag {
		c := r.history()[n]
		return newTag(c.at, name, message, c.sha, "commit", signer{c.author.name, c.author.email, c.at})
	}
	signed := release(100, "v1.0.0", "The first one\n"+signatureBegin+"\n\n"+hashOf(s.random.Uint64())+"\n"+signatureEnd+"\n")
	signed.reason = "valid"
	r.git.tags = []*gitTag{signed, release(200, "v1.1.0", "The second one\n")}
}

func (s *seeder) watchers(w *world, r *repository) {
	for login, a := range w.accounts {
		if strings.HasPrefix(login, "watcher-") {
			r.subscriptions.set(&subscription{user: a, subscribed: true, created: s.now.AddDate(0, 0, -a.id)})
		}
	}
}

func (s *seeder) advisories(r *repository) {
	for i, summary := range []string{"The gear turns without its key", "The lever accepts input without authentication"} {
		r.advisories = append(r.advisories, advisory{fmt.Sprintf("adv-%d-%d", r.id, i+1), summary, s.now.AddDate(0, 0, -10*(i+1))})
	}
}

// properties sets the custom properties that organization rulesets can select repositories by.
func (s *seeder) properties(all []*repository) {
	for _, r := range all {
		r.properties = map[string]string{"team": "parts", "stage": "production"}
		if r.private {
			r.properties["team"] = "security"
		}
		if r.name == "empty" {
			r.properties["stage"] = "plan"
		}
	}
}

func (s *seeder) rulesets(w *world, acme *account, widgets *repository) {
	add := func(to *[]*ruleset, id int, body string) {
		set, fieldErr := readRuleset([]byte(body))
		if fieldErr != nil {
			panic("seed: invalid ruleset field " + fieldErr.field)
		}
		set.id, set.created = id, s.now.AddDate(0, -1, -id%20)
		*to, w.lastRuleset = append(*to, set), id
	}
	acme.canEvaluate = true
	add(&acme.rulesets, 501, `{"name": "signed everywhere", "enforcement": "active", "rules": [{"type": "required_signatures"}],
		"conditions": {"repository_name": {"include": ["~ALL"]}, "ref_name": {"include": ["~ALL"]}}}`)
	add(&acme.rulesets, 502, `{"name": "linear history, in evaluation", "enforcement": "evaluate", "rules": [{"type": "required_linear_history"}],
		"conditions": {"repository_name": {"include": ["~ALL"]}, "ref_name": {"include": ["~ALL"]}}}`)
	add(&widgets.rulesets, 601, `{"name": "main is reviewed", "enforcement": "active", "conditions": {"ref_name": {"include": ["~DEFAULT_BRANCH"]}},
		"rules": [{"type": "pull_request", "parameters": {
			"dismiss_stale_reviews_on_push": true, "require_code_owner_review": false, "require_last_push_approval": false,
			"required_approving_review_count": 1, "required_review_thread_resolution": true}}]}`)
	add(&widgets.rulesets, 602, `{"name": "protect release branches", "enforcement": "active", "rules": [{"type": "deletion"}, {"type": "non_fast_forward"}],
		"conditions": {"ref_name": {"include": ["refs/heads/release/**"], "exclude": ["refs/heads/release/old/*"]}}}`)
	add(&widgets.rulesets, 603, `{"name": "switched off", "enforcement": "disabled", "rules": [{"type": "creation"}],
		"conditions": {"ref_name": {"include": ["~ALL"]}}}`)
}

// configurations creates one global configuration and two configurations of acme. New public repositories get the
// global configuration. One configuration of acme is attached to widgets. The other configuration is attached to secret
// and is the default for private repositories.
func (s *seeder) configurations(w *world, acme *account, widgets, secret *repository) {
	add := func(id int, org *account, body map[string]any) *configuration {
		values, fieldErr := parseConfiguration(body, documentedBot)
		if fieldErr != nil {
			panic("seed: invalid configuration field " + fieldErr.Field)
		}
		c := &configuration{id: id, organization: org, values: values, created: s.now.AddDate(0, -6, id)}
		w.configurations = append(w.configurations, c)
		return c
	}
	recommended := add(1, nil, map[string]any{
		"name": "Recommended", "description": "Settings that suit most repositories",
		"advanced_security": "enabled", "depbot_alerts": "enabled", "depbot_security_updates": "not_set",
		"code_scanning_default_setup": "enabled", "secret_scanning": "enabled", "secret_scanning_push_protection": "enabled",
		"secret_scanning_validity_checks": "enabled", "private_vulnerability_reporting": "enabled",
	})
	widgets.configuration = add(2, acme, map[string]any{
		"name": "Public parts", "description": "Settings of public repositories", "secret_scanning": "enabled", "enforcement": "unenforced",
	})
	secret.configuration = add(3, acme, map[string]any{
		"name": "Secrets", "description": "Settings of private repositories", "secret_scanning": "enabled",
		"dependency_graph_autosubmit_action": "enabled", "dependency_graph_autosubmit_action_options": map[string]any{"labeled_runners": true},
	})
	acme.defaults = []newRepositoryDefault{{"public", recommended}, {"private_and_internal", secret.configuration}}
}

// migrations creates an import and an export of acme, and an export of a user. The archive of the export of acme is
// still available.
func (s *seeder) migrations(w *world, acme *account, widgets, secret *repository) {
	owner := w.accounts["acme-owner"]
	w.migrations = []*migration{
		{id: 801, owner: acme, isImport: true, created: s.now.AddDate(-1, 0, 0)},
		{id: 802, owner: acme, repositories: []*repository{widgets, secret}, options: migrationBody{ExcludeAttachments: true}, created: s.now.AddDate(0, 0, -2)},
		{id: 803, owner: owner, repositories: []*repository{widgets}, created: s.now.AddDate(0, 0, -1)},
	}
}
