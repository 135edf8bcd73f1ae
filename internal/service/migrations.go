package service

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// migration is the export of repositories of an organization or a user into an
// archive, or an import into an organization (Document B section 2.7).
type migration struct {
	id    int
	owner *account // an organization, or the user who started it
	// imports marks an import, which is over; it has no repository list.
	isImport     bool
	repositories []*repository
	options      migrationBody
	created      time.Time
}

// migrationStart is the body that starts a migration; what it leaves out is false
// or empty (Document B section 4.6).
type migrationBody struct {
	Repositories         []string `json:"repositories"`
	LockRepositories     bool     `json:"lock_repositories"`
	ExcludeMetadata      bool     `json:"exclude_metadata"` // like the next, of the archive alone: no record shows it
	ExcludeGitData       bool     `json:"exclude_git_data"`
	ExcludeAttachments   bool     `json:"exclude_attachments"`
	ExcludeReleases      bool     `json:"exclude_releases"`
	ExcludeOwnerProjects bool     `json:"exclude_owner_projects"`
	MetadataOnly         bool     `json:"org_metadata_only"`
	// Exclude names what the answer leaves out; the migration has it all the same.
	Exclude []string `json:"exclude"`
}

// lockedForMigration is the message to who would change a locked repository.
const lockedForMigration = "Repository has been locked for migration."

// An export waits, and then takes its time; an archive stays for seven days
// (Document B section 3), and its migration in the list for ever.
const (
	exportDelay    = 2 * time.Second
	exportDuration = 8 * time.Second
)

// state is that of the migration at a time, and since when it is.
func (m *migration) state(now time.Time) (name string, since time.Time) {
	began := m.created.Add(exportDelay)
	ended := began.Add(exportDuration)
	switch {
	case m.isImport:
		return "imported", m.created
	case now.Before(began):
		return "pending", m.created
	case now.Before(ended):
		return "exporting", began
	}
	return "exported", ended
}

// guid is made from the id, so that it is the same in every life of one seed (RFC
// 9562 section 5.8).
func (m *migration) guid() string {
	digits := hashOf(uint64(m.id))
	return strings.Join([]string{digits[:8], digits[8:12], "8" + digits[13:16], "8" + digits[17:20], digits[20:32]}, "-")
}

// url is where the record of one migration would be; the documents show no
// operation for it.
func (m *migration) url(req *request) string {
	if m.owner.members == nil {
		return req.base + "/user/migrations/" + itoa(m.id)
	}
	return req.base + "/orgs/" + m.owner.login + "/migrations/" + itoa(m.id)
}

// migrationObject is the record (Document B section 2.7). The repositories are left
// out where the request asks for it, and never in an import's; those that its token
// may not see are not among them.
func migrationObject(s *Service, req *request, m *migration, withRepositories bool) object {
	state, since := m.state(time.Now())
	o := object{
		{"id", m.id}, {"node_id", nodeID("Migration", m.id)}, {"owner", userObject(req, m.owner)}, {"guid", m.guid()}, {"state", state},
		{"lock_repositories", m.options.LockRepositories}, {"exclude_attachments", m.options.ExcludeAttachments},
		{"exclude_releases", m.options.ExcludeReleases}, {"exclude_owner_projects", m.options.ExcludeOwnerProjects},
	}
	if withRepositories && !m.isImport {
		shown := slices.DeleteFunc(slices.Clone(m.repositories), func(r *repository) bool { return !s.world.isVisible(r, req.caller) })
		o = append(o, field{"repositories", renderAll(shown, func(r *repository) object { return migratedRepository(s, req, r) })})
	}
	return append(o, object{{"url", m.url(req)}, {"created_at", timestamp(m.created)}, {"updated_at", timestamp(since)}}...)
}

// migratedRepository is the repository of Document A section 2.7 and what a
// migration's has more.
func migratedRepository(s *Service, req *request, r *repository) object {
	return append(repositoryObject(s, req, r), object{
		{"allow_rebase_merge", true}, {"allow_squash_merge", true}, {"allow_auto_merge", false}, {"delete_branch_on_merge", false}, {"allow_merge_commit", true},
		{"template_repository", nil}, {"temp_clone_token", ""}, {"subscribers_count", len(watchersOf(r))}, {"network_count", 0},
		{"forks", 0}, {"open_issues", r.openIssues()}, {"watchers", 0},
		{"license", object{
			{"key", "mit"}, {"name", "MIT License"}, {"url", req.base + "/licenses/mit"}, {"spdx_id", "MIT"},
			{"node_id", nodeID("License", 1)}, {"html_url", req.base + "/" + r.fullName() + "/blob/" + r.defaultBranch + "/LICENSE"},
		}},
	}...)
}

// migrationsOf are the migrations of an organization or a user, newest first.
func (w *world) migrationsOf(owner *account) []*migration {
	own := slices.DeleteFunc(slices.Clone(w.migrations), func(m *migration) bool { return m.owner != owner })
	slices.Reverse(own)
	return own
}

// listOrganizationMigrations leaves out of each migration what exclude names, as
// exclude=repositories or exclude[]=repositories; there is nothing else to leave
// out.
func listOrganizationMigrations(s *Service, req *request) response {
	org := req.target.organization
	excluded := slices.Concat(req.query["exclude"], req.query["exclude[]"])
	all := !slices.Contains(excluded, "repositories")
	return list(req, "/organizations/"+itoa(org.id)+"/migrations", s.world.migrationsOf(org),
		func(m *migration) object { return migrationObject(s, req, m, all) })
}

func listUserMigrations(s *Service, req *request) response {
	return list(req, "/user/migrations", s.world.migrationsOf(s.world.user(req.caller)),
		func(m *migration) object { return migrationObject(s, req, m, true) })
}

// startOrganizationMigration exports repositories of the organization.
func startOrganizationMigration(s *Service, req *request) response {
	org := req.target.organization
	return s.startMigration(req, org, func(r *repository) bool { return r.owner == org })
}

// startUserMigration exports repositories that the user administers.
func startUserMigration(s *Service, req *request) response {
	user := s.world.user(req.caller)
	return s.startMigration(req, user, func(r *repository) bool { return isOwner(pathTarget{organization: r.owner}, user) })
}

// startMigration starts the export of the repositories that the body names, each of
// which the caller must see and may must allow. With org_metadata_only there are
// none, and whatever else the body asks for is ignored.
func (s *Service) startMigration(req *request, owner *account, allowed func(*repository) bool) response {
	var body migrationBody
	if problem := s.decode(req.body, "Migration", &body); problem != nil {
		return *problem
	}
	if body.MetadataOnly {
		body = migrationBody{Repositories: body.Repositories, MetadataOnly: true, Exclude: body.Exclude}
	}
	repositories, badIndex := s.repositoriesNamed(body.Repositories, func(r *repository) bool { return s.world.isVisible(r, req.caller) && allowed(r) })
	unsupported := slices.IndexFunc(body.Exclude, func(attribute string) bool { return attribute != "repositories" })
	switch {
	case body.Repositories == nil:
		return s.missing("Migration", "repositories")
	case body.MetadataOnly != (len(body.Repositories) == 0):
		return s.invalid("Migration", "repositories")
	case badIndex >= 0:
		return s.invalid("Migration", "repositories["+itoa(badIndex)+"]")
	case unsupported >= 0:
		return s.invalid("Migration", "exclude["+itoa(unsupported)+"]")
	}
	for _, r := range repositories {
		r.locked = r.locked || body.LockRepositories
	}
	all := s.world.migrations
	m := &migration{id: all[len(all)-1].id + 1, owner: owner, repositories: repositories, options: body, created: time.Now()}
	s.world.migrations = append(s.world.migrations, m)
	return response{status: http.StatusCreated, body: migrationObject(s, req, m, len(body.Exclude) == 0), location: m.url(req)}
}

// repositoriesNamed are the repositories with those full names, each of them once,
// and the index of the first name that stands for none that is allowed, else -1.
func (s *Service) repositoriesNamed(names []string, allowed func(*repository) bool) (named []*repository, badIndex int) {
	for i, name := range names {
		at := slices.IndexFunc(s.world.repositories, func(r *repository) bool { return strings.EqualFold(r.fullName(), name) && allowed(r) })
		if at < 0 {
			return nil, i
		}
		if r := s.world.repositories[at]; !slices.Contains(named, r) {
			named = append(named, r)
		}
	}
	return named, -1
}
