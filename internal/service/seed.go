package service

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"
)

// seedFile is the content of reference/seed.yaml.
type seedFile struct {
	Accounts []struct {
		Login, Name, Description string
		Count                    int
		Organization             bool
	}
	Repositories []struct {
		Name, Description, Language string
		Private                     bool
		Commits, Weeks, Pulls       int
		Files, Properties           map[string]string
	}
	Teams []struct {
		Name, Description, Privacy, Parent string
		Members                            []string
	}
	Roles []struct {
		Name, Description         string
		Permissions, Users, Teams []string
	}
	Rulesets []struct {
		ID               int
		Repository, Body string
	}
	Configurations []struct{ Repository, Default, Body string }
}

var seedData = readReference[seedFile]("seed.yaml")

type seeder struct {
	*world
	seedFile
	random *rand.Rand
	now    time.Time
}

// seed creates the initial state. The state has the organization acme, its repositories, and the users of the tokens.
// It has enough watchers and members for lists of several pages. The bot is that of the dialect.
func seed(n uint64, now time.Time, bot string) *world {
	w := &world{
		started: now.UTC().Truncate(time.Second), lastID: 10_000, stored: map[string]doc{}, keys: map[string][]string{}, of: map[string][]string{},
		kinds: newKinds(), apps: map[string]int{}, tokens: tokens(), accounts: map[string]*account{},
	}
	s := &seeder{world: w, seedFile: seedData(), random: rand.New(rand.NewPCG(n, 1)), now: now.Truncate(time.Hour)}
	acme := s.seedAccounts()
	for _, d := range s.Repositories {
		r := w.newRepo(acme, d.Name, d.Private, s.now.AddDate(-2, 0, 0))
		r.description, r.language, r.properties = d.Description, d.Language, maps.Clone(d.Properties)
		if d.Commits > 0 && r.name != largeRepository {
			s.commits(r, d.Files, d.Commits, d.Weeks)
		}
	}
	widgets, secret := w.repositories[0], w.repositories[1]
	s.seedIssues(w, widgets)
	s.watchers(w, widgets)
	s.tags(widgets)
	s.advisories(widgets)
	s.advisories(secret)
	s.seedTeams(acme)
	s.invitations(w, acme)
	s.rulesets(acme)
	s.seedConfigurations(acme, bot)
	s.seedMigrations(acme, widgets, secret)
	for i, d := range s.Repositories {
		if r := w.repositories[i]; r.name == largeRepository {
			r.pushed, r.fill = s.now, func() { s.fill(n, r, d.Files, d.Commits, d.Weeks, d.Pulls) }
		} else {
			s.seedPulls(w, r, d.Pulls)
		}
	}
	w.seedObjects(w.started)
	return w
}

// largeRepository is filled on its first use. largeRepositoryIDs precedes the IDs of its objects, and 10,000 follows them:
// the IDs of other objects do not depend on the first use.
const (
	largeRepository    = "monolith"
	largeRepositoryIDs = 5000
)

// fill adds the commits and pull requests of the large repository.
func (s *seeder) fill(n uint64, r *repository, files map[string]string, commits, weeks, pulls int) {
	own, lastID := &seeder{world: s.world, random: rand.New(rand.NewPCG(n, 2)), now: s.now}, s.lastID
	s.lastID = largeRepositoryIDs
	own.commits(r, files, commits, weeks)
	own.seedPulls(s.world, r, pulls)
	s.lastID = lastID
}

// seedAccounts creates the accounts and the members of the organizations, and returns acme.
func (s *seeder) seedAccounts() *account {
	for _, d := range s.Accounts {
		for i := range max(1, d.Count) {
			login, name := d.Login, d.Name
			if d.Count > 0 {
				login, name = fmt.Sprintf(login, i+1), fmt.Sprintf(name, i+1)
			}
			a := s.addAccount(login, name)
			a.description = d.Description
			if d.Organization {
				a.members = map[string]*membership{}
			}
		}
	}
	acme, labs, user := s.accounts["acme"], s.accounts["acme-labs"], s.accounts
	acme.members["acme-owner"] = &membership{user: user["acme-owner"], admin: true, public: true, twoFactor: true}
	acme.members["acme-member"] = &membership{user: user["acme-member"], twoFactor: true}
	for i := range 40 {
		login := fmt.Sprintf("builder-%02d", i+1)
		acme.members[login] = &membership{user: user[login], public: i%4 != 0, twoFactor: i%10 != 0, securityManager: i == 0}
	}
	acme.formerMembers = map[string]*membership{"leaver": {user: user["leaver"], admin: true, twoFactor: true}}
	for _, login := range []string{"acme-owner", "acme-member", "builder-02"} {
		labs.members[login] = &membership{user: user[login], admin: login == "acme-owner", public: true, twoFactor: true}
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

// commits adds n commits of files that are spread over the last weeks. The time of the last commit is now.
func (s *seeder) commits(r *repository, files map[string]string, n, weeks int) {
	zones := []*time.Location{time.UTC, time.FixedZone("", 2*3600), time.FixedZone("", -7*3600)}
	var authors []*account
	for _, login := range sortedMembers(r.owner)[:6] {
		authors = append(authors, r.owner.members[login].user)
	}
	span := time.Duration(weeks) * 7 * 24 * time.Hour
	if r.name == "widgets" {
		files = withParts(files)
	}
	r.git.commits = make(map[string]*commit, n)
	tree := r.git.treeOf(files)
	for i := range n {
		at := s.now.Add(-span / time.Duration(n) * time.Duration(n-1-i))
		c := commit{
			tree: tree, author: authors[s.random.IntN(len(authors))], at: at.In(zones[s.random.IntN(len(zones))]),
			additions: s.random.IntN(80), deletions: s.random.IntN(40),
			message: fmt.Sprintf("%s the %s", pick(s.random, []string{"fix", "add", "remove", "polish"}, ""), pick(s.random, []string{"gear", "lever", "spring", "widget"}, "")),
		}
		switch s.random.IntN(20) {
		case 0:
			c.merge, c.message = true, "merge branch"
		case 1:
			c.additions, c.deletions = 0, 0
		}
		c.sha = shaOf(r.id, i, s.random.Uint64())
		r.git.grow(c)
		r.pushed = at
	}
}

// withParts returns the files of widgets with many small ones, and one that is too large for the search.
func withParts(files map[string]string) map[string]string {
	files = maps.Clone(files)
	files["assets/widget.svg"] = strings.Repeat("<svg/>\n", maxSearchedFileSize/7+1)
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
	signed := release(100, "v1.0.0", "The first one\n"+signatureBegin+"\n\n"+shaOf(s.random.Uint64())+"\n"+signatureEnd+"\n")
	signed.reason = "valid"
	r.git.tags = []*gitTag{signed, release(200, "v1.1.0", "The second one\n")}
}

func (s *seeder) watchers(w *world, r *repository) {
	for login, a := range w.accounts {
		if strings.HasPrefix(login, "watcher-") {
			r.subscriptions[a] = &subscription{subscribed: true, created: s.now.AddDate(0, 0, -a.id)}
		}
	}
}

func (s *seeder) advisories(r *repository) {
	for i, summary := range []string{"The gear turns without its key", "The lever accepts input without authentication"} {
		r.advisories = append(r.advisories, advisory{fmt.Sprintf("adv-%d-%d", r.id, i+1), summary, s.now.AddDate(0, 0, -10*(i+1))})
	}
}

// seedTeams creates the teams of acme and the roles of its teams and members.
func (s *seeder) seedTeams(acme *account) {
	for _, d := range s.Teams {
		t := s.addTeam(acme, d.Name, d.Description, cmp.Or(d.Privacy, "closed"), acme.teamNamed(d.Parent))
		for _, login := range d.Members {
			t.members[login] = true
		}
	}
	for i, d := range s.Roles {
		r := &role{id: i + 1, name: d.Name, description: d.Description, permissions: d.Permissions, created: s.now.AddDate(-1, 0, 0), assigned: map[string]bool{}}
		for _, slug := range d.Teams {
			r.assigned[assignedTeam+slug] = true
		}
		for _, login := range d.Users {
			r.assigned[assignedUser+login] = true
		}
		acme.roles = append(acme.roles, r)
	}
}

func (s *seeder) rulesets(acme *account) {
	acme.canEvaluate = true
	for _, d := range s.Rulesets {
		set := &ruleset{id: d.ID, owner: acme, repository: s.repositoryNamed("acme/" + d.Repository), created: s.now.AddDate(0, -1, -d.ID%20)}
		if readBody([]byte(d.Body), "Ruleset", set) != nil {
			panic("seed: invalid ruleset " + d.Body)
		}
		sets := &acme.rulesets
		if set.repository != nil {
			sets = &set.repository.rulesets
		}
		*sets, s.lastRuleset = append(*sets, set), d.ID
	}
}

// seedConfigurations creates the configurations of acme, attaches them and makes them defaults.
func (s *seeder) seedConfigurations(acme *account, bot string) {
	for i, d := range s.Configurations {
		values, problem := configurationSchema(bot).body("", nil, []byte(strings.ReplaceAll(d.Body, documentedBot, bot)))
		if problem != nil {
			panic("seed: invalid configuration " + d.Body)
		}
		c := &configuration{id: i + 1, values: values, created: s.now.AddDate(0, -6, i+1)}
		if i > 0 { // not the global one
			c.organization = acme
		}
		if r := s.repositoryNamed("acme/" + d.Repository); r != nil {
			r.configuration = c
		}
		if d.Default != "" {
			acme.defaults = append(acme.defaults, newRepositoryDefault{d.Default, c})
		}
		s.configurations = append(s.configurations, c)
	}
}

// invitations creates one pending and one failed invitation for each role and source. Members invite existing users and
// add them to teams. SCIM invites e-mail addresses without an account.
func (s *seeder) invitations(w *world, acme *account) {
	for _, failed := range []bool{false, true} {
		for n, role := range invitationRoles {
			for _, source := range invitationSources {
				i := &invitation{
					email: fmt.Sprintf("newcomer-%02d@example.com", w.invitations+1), role: role, source: source,
					inviter: w.accounts["acme-owner"], created: s.now.Add(time.Duration(w.invitations-24) * time.Hour),
				}
				if source == "member" {
					i.user = w.accounts[fmt.Sprintf("watcher-%02d", w.invitations+1)]
					i.email, i.teams = i.user.email, slices.Clone(acme.teams[:n+1])
				}
				if failed {
					i.failedAt, i.failedReason = i.created.Add(time.Hour), "The email could not be delivered"
				}
				w.invite(acme, i)
			}
		}
	}
}

// seedMigrations creates an import and an export of acme, and an export of a user. The archive of the export of acme is
// still available.
func (s *seeder) seedMigrations(acme *account, widgets, secret *repository) {
	owner := s.accounts["acme-owner"]
	s.migrations = []*migration{
		{id: 801, owner: acme, isImport: true, created: s.now.AddDate(-1, 0, 0)},
		{id: 802, owner: acme, repositories: []*repository{widgets, secret}, options: migrationBody{ExcludeAttachments: true}, created: s.now.AddDate(0, 0, -2)},
		{id: 803, owner: owner, repositories: []*repository{widgets}, created: s.now.AddDate(0, 0, -1)},
	}
}

// seedIssues adds issues.
func (s *seeder) seedIssues(w *world, r *repository) {
	for i := range 24 {
		created := s.now.AddDate(0, 0, -i)
		title := fmt.Sprintf("The %s %s", pick(s.random, []string{"gear", "lever", "spring"}, ""), pick(s.random, []string{"squeaks", "is loose", "does not turn"}, ""))
		body := doc{"title": title, "body": "Seen with the newest widget.", "labels": []any{pick(s.random, []string{"bug", "enhancement"}, "")}, "milestone": float64(1 + i%2)}
		if i%3 == 0 {
			body["state"] = "closed"
		}
		w.addIssue(r, body, r.history()[i].author.login, created)
	}
}

// seedPulls adds n pull requests, the newest last. They differ in author, state, review and checks.
func (s *seeder) seedPulls(w *world, r *repository, n int) {
	root, authors, g := r.path(), []string{"acme-owner", "acme-member", "builder-02", "outsider"}, r.git
	for i := range n {
		created, author, branch := s.now.Add(-time.Duration(n-i)*6*time.Hour), authors[i%len(authors)], fmt.Sprintf("part-%d", i+1)
		c := commit{sha: shaOf(r.id, i), message: "Replace a part", author: w.accounts[author], at: created}
		g.refs["heads/"+branch] = g.change(mainBranch, c, map[string]string{"part-" + itoa(i+1) + ".txt": branch})
		body := doc{
			"title": fmt.Sprintf("Replace part %d", i+1), "body": "The old part no longer fits.", "labels": []any{"enhancement"},
			"head": branch, "base": mainBranch, "draft": i%5 == 4,
		}
		if i%3 == 0 && author != authors[0] {
			body["requested_reviewers"] = []any{authors[0]}
		}
		pull := w.addPull(r, body, author, created)
		number := str(pull["number"])
		add := func(collection, view string, fields doc, at time.Time) {
			w.add(r, root+"/"+collection, inRepo+view, fields, "builder-03", at)
		}
		test := doc{"name": "test", "head_sha": c.sha, "status": "completed", "conclusion": []any{"success", "success", "failure", nil}[i%4]}
		if test["conclusion"] == nil {
			test["status"] = "in_progress"
		}
		add("check-runs", "check-runs", doc{"name": "build", "head_sha": c.sha, "status": "completed", "conclusion": "success"}, created)
		add("check-runs", "check-runs", test, created)
		add("statuses", "statuses", doc{"sha": c.sha, "context": "coverage", "state": "success"}, created)
		if i%3 > 0 {
			state := []string{"APPROVED", "CHANGES_REQUESTED"}[i%3-1]
			add("pulls/"+number+"/reviews", "pulls/{}/reviews", doc{"state": state, "body": ""}, created.Add(time.Hour))
		}
		issue := w.find(root + "/issues/" + number)
		if i%4 == 1 {
			add("issues/comments", "issues/comments", doc{"issue": number, "body": "Does it still fit?"}, created.Add(time.Hour))
			issue["updated_at"] = timestamp(created.Add(time.Hour))
		}
		if i%6 == 2 || i%6 == 5 {
			changeIssue(issue, doc{"state": "closed"}, created.Add(2*time.Hour))
		}
		if i%6 == 5 {
			pull["merged"], pull["merged_at"] = true, issue["closed_at"]
		}
	}
}

//go:embed reference
var referenceFiles embed.FS

const templateFolder, templateEnding = "reference/gitignore/", ".gitignore"

// codeOfConduct is one entry of reference/codes_of_conduct.yaml (Document B section 2.2).
type codeOfConduct struct{ Key, Name, Body string }

var codesOfConduct = readReference[[]codeOfConduct]("codes_of_conduct.yaml")

// readReference returns a function that returns the content of a file of reference data. Only its first call reads the
// file, so that other commands of the program start without the reference data.
func readReference[T any](name string) func() T {
	return sync.OnceValue(func() (into T) {
		text, err := referenceFiles.ReadFile("reference/" + name)
		if err == nil {
			err = yaml.Load(text, &into)
		}
		if err != nil {
			panic(err) // the file is embedded
		}
		return into
	})
}

// readTable returns the rows of a table of reference data, as columns.
func readTable(name string) [][]string {
	text, err := referenceFiles.ReadFile("reference/" + name)
	if err != nil {
		panic(err) // the file is embedded
	}
	return splitTable(string(text))
}

// splitTable returns the columns of each row of a table. Rows that begin with # are comments.
func splitTable(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	return rows
}

func listTemplates(*Service, *request) response {
	files, err := fs.Glob(referenceFiles, templateFolder+"*"+templateEnding)
	if err != nil {
		panic(err) // the pattern is valid
	}
	names := []string{}
	for _, name := range files {
		names = append(names, strings.TrimSuffix(path.Base(name), templateEnding))
	}
	slices.Sort(names)
	return respond(names)
}

func getTemplate(s *Service, req *request) response {
	text, err := referenceFiles.ReadFile(templateFolder + req.params["name"] + templateEnding)
	if err != nil {
		return notFound()
	}
	if s.accepts(req, "raw") {
		return response{status: http.StatusOK, text: text, kind: s.mediaType("raw") + "; charset=utf-8"}
	}
	return respond(object{{"name", req.params["name"]}, {"source", string(text)}})
}

func codeOfConductObject(req *request, c codeOfConduct) object {
	return object{
		{"key", c.Key}, {"name", c.Name}, {"url", req.base + "/codes_of_conduct/" + c.Key},
		{"html_url", req.base + "/conduct/" + c.Key},
	}
}

func getCodeOfConduct(s *Service, req *request) response {
	for _, c := range codesOfConduct() {
		if c.Key == req.params["key"] {
			return respond(append(codeOfConductObject(req, c), field{"body", c.Body}))
		}
	}
	return notFound()
}

// mediaType returns the vendor media type of a representation, for example "raw".
func (s *Service) mediaType(representation string) string {
	return "application/vnd." + s.config.Dialect.Vendor + "." + representation + "+json"
}

// accepts reports whether the Accept header names a vendor representation. The media type may contain the version "v3".
func (s *Service) accepts(req *request, representation string) bool {
	return slices.ContainsFunc(acceptedTypes(req), func(name string) bool {
		rest, ok := strings.CutPrefix(name, "application/vnd."+s.config.Dialect.Vendor+".")
		return ok && strings.TrimSuffix(strings.TrimPrefix(rest, "v3."), "+json") == representation
	})
}

// acceptedTypes returns the media types of the Accept header in lower case and without parameters.
func acceptedTypes(req *request) []string {
	var names []string
	for _, value := range req.Header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			name, _, _ := strings.Cut(strings.ToLower(part), ";")
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}
