package service

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// migration exports repositories of an organization or a user to an archive, or imports repositories into an
// organization (Document B section 2.7).
type migration struct {
	id    int
	owner *account // an organization, or the user that started the migration
	// isImport marks an import. Imports are complete and have no list of repositories.
	isImport     bool
	repositories []*repository
	options      migrationBody
	created      time.Time
}

// migrationBody is the body that starts a migration (Document B section 4.6). Absent members are false or empty.
type migrationBody struct {
	Repositories         []string `json:"repositories"`
	LockRepositories     bool     `json:"lock_repositories"`
	ExcludeMetadata      bool     `json:"exclude_metadata"` // records omit ExcludeMetadata and ExcludeGitData, which affect only the archive
	ExcludeGitData       bool     `json:"exclude_git_data"`
	ExcludeAttachments   bool     `json:"exclude_attachments"`
	ExcludeReleases      bool     `json:"exclude_releases"`
	ExcludeOwnerProjects bool     `json:"exclude_owner_projects"`
	MetadataOnly         bool     `json:"org_metadata_only"`
	// Exclude names the members that the response omits. The migration keeps them.
	Exclude []string `json:"exclude"`
}

// lockedForMigration is the error message for a change to a locked repository.
const lockedForMigration = "Repository has been locked for migration."

// These constants are the times of an export (Document B section 3). The list keeps migrations forever, although an
// archive expires after seven days.
const (
	exportDelay    = 2 * time.Second
	exportDuration = 8 * time.Second
)

// state returns the state of the migration at a time, and the time when that state began.
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

// url returns the URL of the migration. The documents define no operation for that URL.
func (m *migration) url(req *request) string {
	if m.owner.members == nil {
		return req.base + "/user/migrations/" + itoa(m.id)
	}
	return req.base + "/orgs/" + m.owner.login + "/migrations/" + itoa(m.id)
}

// migrationObject returns the record of a migration (Document B section 2.7). The list of repositories is omitted for
// imports and if withRepositories is false. The list contains only the repositories that the caller may see.
func migrationObject(s *Service, req *request, m *migration, withRepositories bool) object {
	state, since := m.state(time.Now())
	o := object{
		{"id", m.id}, {"node_id", nodeID("Migration", m.id)}, {"owner", userObject(req, m.owner)}, {"guid", uuid.NewSHA1(uuid.Nil, []byte(itoa(m.id)))}, {"state", state},
		{"lock_repositories", m.options.LockRepositories}, {"exclude_attachments", m.options.ExcludeAttachments},
		{"exclude_releases", m.options.ExcludeReleases}, {"exclude_owner_projects", m.options.ExcludeOwnerProjects},
	}
	if withRepositories && !m.isImport {
		shown := slices.DeleteFunc(slices.Clone(m.repositories), func(r *repository) bool { return !s.world.isVisible(r, req.caller) })
		o = append(o, field{"repositories", renderAll(shown, func(r *repository) object { return migratedRepository(s, req, r) })})
	}
	return append(o, object{{"url", m.url(req)}, {"created_at", timestamp(m.created)}, {"updated_at", timestamp(since)}}...)
}

// migratedRepository returns the record of Document A section 2.7 with the additional members that migrations show.
func migratedRepository(s *Service, req *request, r *repository) object {
	return append(repositoryObject(s, req, r), object{
		{"allow_rebase_merge", true}, {"allow_squash_merge", true}, {"allow_auto_merge", false}, {"delete_branch_on_merge", false}, {"allow_merge_commit", true},
		{"template_repository", nil}, {"temp_clone_token", ""}, {"subscribers_count", len(watchersOf(r))}, {"network_count", 0},
		{"forks", 0}, {"open_issues", s.world.openIssues(r)}, {"watchers", 0},
		{"license", object{
			{"key", "mit"}, {"name", "MIT License"}, {"url", req.base + "/licenses/mit"}, {"spdx_id", "MIT"},
			{"node_id", nodeID("License", 1)}, {"html_url", req.base + "/" + r.fullName() + "/blob/" + r.defaultBranch + "/LICENSE"},
		}},
	}...)
}

// listMigrations lists the migrations of an organization or of the user, newest first. For an organization, the
// parameters exclude=repositories and exclude[]=repositories omit the repositories.
func listMigrations(s *Service, req *request) response {
	owner := cmp.Or(req.org, s.world.user(req.caller))
	own := slices.DeleteFunc(slices.Clone(s.world.migrations), func(m *migration) bool { return m.owner != owner })
	slices.Reverse(own)
	excluded := slices.Concat(req.query["exclude"], req.query["exclude[]"])
	all := req.org == nil || !slices.Contains(excluded, "repositories")
	return listOf(own, func(m *migration) object { return migrationObject(s, req, m, all) })
}

// startMigration exports repositories of the organization, or repositories that the user administers. The caller must
// see each repository. With org_metadata_only, the migration has no repositories, and the other options are ignored.
func startMigration(s *Service, req *request) response {
	owner := cmp.Or(req.org, s.world.user(req.caller))
	allowed := func(r *repository) bool {
		ofOwner := r.owner == owner || req.org == nil && isOwner(r.owner, owner)
		return ofOwner && s.world.isVisible(r, req.caller)
	}
	var body migrationBody
	if problem := readBody(req.raw, "Migration", &body); problem != nil {
		return *problem
	}
	if body.MetadataOnly {
		body = migrationBody{Repositories: body.Repositories, MetadataOnly: true, Exclude: body.Exclude}
	}
	repositories, badIndex := s.repositoriesNamed(body.Repositories, allowed)
	unsupported := slices.IndexFunc(body.Exclude, func(attribute string) bool { return attribute != "repositories" })
	switch {
	case body.MetadataOnly != (len(body.Repositories) == 0):
		return invalid("Migration", "repositories")
	case badIndex >= 0:
		return invalid("Migration", "repositories["+itoa(badIndex)+"]")
	case unsupported >= 0:
		return invalid("Migration", "exclude["+itoa(unsupported)+"]")
	}
	for _, r := range repositories {
		r.locked = r.locked || body.LockRepositories
	}
	all := s.world.migrations
	m := &migration{id: all[len(all)-1].id + 1, owner: owner, repositories: repositories, options: body, created: time.Now()}
	s.world.migrations = append(s.world.migrations, m)
	return response{status: http.StatusCreated, body: migrationObject(s, req, m, len(body.Exclude) == 0), location: m.url(req)}
}

// repositoriesNamed returns the repositories with the given full names, without duplicates. badIndex is the index of
// the first name without an allowed repository, or -1.
func (s *Service) repositoriesNamed(names []string, allowed func(*repository) bool) (named []*repository, badIndex int) {
	for i, name := range names {
		r := first(s.world.repositories, func(r *repository) bool { return strings.EqualFold(r.fullName(), name) && allowed(r) })
		if r == nil {
			return nil, i
		}
		if !slices.Contains(named, r) {
			named = append(named, r)
		}
	}
	return named, -1
}
