package service

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

const organizationMigrations, userMigrations = "/orgs/acme/migrations", "/user/migrations"

// TestMigrationsAreListedNewestFirst covers Document B section 2.7. Exports contain their
// repositories, and imports do not.
func TestMigrationsAreListedNewestFirst(t *testing.T) {
	runWithService(t, func(t *tester) {
		w := t.call("owner", "GET "+organizationMigrations, 200, `[
			{"id":802,"state":"exported","exclude_attachments":true,"exclude_releases":false,"owner":{"type":"Organization"},
				"repositories":[{"full_name":"acme/widgets"},{"full_name":"acme/secret"}]},
			{"id":801,"state":"imported","repositories":"-"}]`)
		t.call("owner", "GET "+userMigrations, 200, `[{"owner":{"login":"acme-owner"},"url":"http://api.test/user/migrations/803"}]`)
		t.call("member", "GET "+userMigrations, 200, "[]")
		guid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
		all := decode[[]struct{ GUID string }](t, w)
		failIf(t, !guid.MatchString(all[0].GUID) || all[0].GUID == all[1].GUID, "got GUIDs %v", all)
		// A token that may list migrations and may not see private repositories.
		t.call("org-admin", "GET "+organizationMigrations, 200, `[{"repositories":[{"full_name":"acme/widgets"}]},{}]`)
	})
}

// TestExcludeOmitsRepositories covers each form of the exclude parameter.
func TestExcludeOmitsRepositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		const without, with = `{"repositories":"-"}`, `{"repositories":"*"}`
		for query, want := range map[string]string{
			"?exclude=repositories": without, "?exclude[]=repositories": without, "?exclude%5B%5D=repositories": without, "?exclude=x&exclude=repositories": without,
			"": with, "?exclude=": with, "?exclude=owner": with,
		} {
			t.call("owner", "GET "+organizationMigrations+query, 200, "["+want+`,{}]`)
		}
		for body, want := range map[string]string{`,"exclude":["repositories"]`: without, `,"exclude":[]`: with, ``: with} {
			t.call("owner", "POST "+organizationMigrations+` {"repositories":["acme/empty"]`+body+`}`, 201, want)
		}
		const stored = `{"repositories":[{"full_name":"acme/empty"}]}` // exclude does not change it
		t.call("owner", "GET "+organizationMigrations, 200, "["+stored+","+stored+","+stored+`,"..."]`)
		t.call("owner", "GET "+organizationMigrations+"?per_page=1&exclude[]=repositories", 200,
			`Link: <http://api.test/organizations/4/migrations?exclude%5B%5D=repositories&per_page=1&page=2>; rel="next"...`)
	})
}

// TestMigrationsPassThroughTheirStates covers Document B section 3. A migration stays
// listed after its archive has expired.
func TestMigrationsPassThroughTheirStates(t *testing.T) {
	for _, path := range []string{organizationMigrations, userMigrations} {
		runWithService(t, func(t *tester) {
			began := time.Now()
			self := "http://api.test" + path + "/804"
			w := t.call("owner", "POST "+path+` {"repositories":["Acme/Widgets","acme/monolith","acme/widgets"]}`, 201, "Location: "+self+`
				{"id":804,"url":"`+self+`","repositories":[{"full_name":"acme/widgets"},{"full_name":"acme/monolith"}]}`)
			for _, c := range []struct {
				at    time.Duration
				state string
				since time.Duration
			}{
				{0, "pending", 0}, {exportDelay - 1, "pending", 0}, {exportDelay, "exporting", exportDelay},
				{exportDelay + exportDuration - 1, "exporting", exportDelay}, {exportDelay + exportDuration, "exported", exportDelay + exportDuration},
				{8 * 24 * time.Hour, "exported", exportDelay + exportDuration},
			} {
				time.Sleep(c.at - time.Since(began))
				t.call("owner", "GET "+path, 200, fmt.Sprintf(`[{"id":804,"state":%q,"created_at":%q,"updated_at":%q,"guid":%q},"..."]`,
					c.state, timestamp(began), timestamp(began.Add(c.since)), decode[jsonObject](t, w)["guid"]))
			}
		})
	}
}

// TestMigrationOptionsAreFalseByDefault also checks that org_metadata_only ignores the
// other options.
func TestMigrationOptionsAreFalseByDefault(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, path := range []string{organizationMigrations, userMigrations} {
			for _, given := range []string{
				"", "exclude_metadata", "exclude_git_data", "lock_repositories", "exclude_attachments", "exclude_releases", "exclude_owner_projects",
			} {
				want := `{"lock_repositories":false,"exclude_attachments":false,"exclude_releases":false,"exclude_owner_projects":false}`
				want = strings.Replace(want, `"`+given+`":false`, `"`+given+`":true`, 1)
				t.call("owner", "POST "+path+` {"repositories":["acme/empty"],"`+given+`":true}`, 201, want)
				if given != "" {
					t.wantErrors("Migration", "POST "+path, []invalidBody{{`{"repositories":["acme/empty"],"` + given + `":1}`, given, "invalid"}})
				}
			}
			t.call("owner", "POST "+path+` {"repositories":[],"org_metadata_only":true,"lock_repositories":true,"exclude_releases":true}`, 201,
				`{"lock_repositories":false,"exclude_releases":false,"repositories":[]}`)
		}
	})
}

func TestStartMigrationRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		stranger := &repository{owner: &account{login: "other", members: map[string]*membership{}}, name: "parts"}
		t.s.world.repositories = append(t.s.world.repositories, stranger)
		const noAccess = `{"errors":[{"resource":"Migration","field":"repositories[0]","code":"invalid"}]}`
		for _, path := range []string{organizationMigrations, userMigrations} {
			t.wantErrors("Migration", "POST "+path, []invalidBody{
				{``, "repositories", "missing_field"},
				{`{"repositories":null}`, "repositories", "missing_field"},
				{`{"org_metadata_only":true}`, "repositories", "missing_field"},
				{`{"repositories":[]}`, "repositories", "invalid"},
				{`{"repositories":["acme/widgets"],"org_metadata_only":true}`, "repositories", "invalid"},
				{`{"repositories":"acme/widgets"}`, "repositories", "invalid"},
				{`{"repositories":[1001]}`, "repositories[0]", "invalid"},
				{`{"repositories":["acme/widgets","acme/none"]}`, "repositories[1]", "invalid"},
				{`{"repositories":["widgets"]}`, "repositories[0]", "invalid"},
				{`{"repositories":["acme/widgets",null]}`, "repositories[1]", "invalid"},
				{`{"repositories":["other/parts"]}`, "repositories[0]", "invalid"},
				{`{"repositories":["acme/widgets"],"exclude":["repositories","owner"]}`, "exclude[1]", "invalid"},
				{`{"repositories":["acme/widgets"],"exclude":"repositories"}`, "exclude", "invalid"},
				{`{"repositories":["acme/widgets"],"org_metadata_only":"no"}`, "org_metadata_only", "invalid"},
			})
			t.call("org-admin", "POST "+path+` {"repositories":["acme/secret"]}`, 422, noAccess)
		}
		t.call("owner", "POST "+userMigrations+" {", 400, "")
		t.call("member", "POST "+userMigrations+` {"repositories":["acme/widgets"]}`, 422, noAccess) // has no admin rights
		t.wantEqual("migrations", 3, len(t.s.world.migrations))                                      // those of the seed
	})
}

// TestLockedRepositoriesRefuseTags checks that reads and other repositories still work.
func TestLockedRepositoriesRefuseTags(t *testing.T) {
	runWithService(t, func(t *tester) {
		tag := func(repository, status int) {
			r := t.s.world.repositories[repository]
			t.call("member", "POST /repos/"+r.fullName()+`/git/tags {"tag":"v9","message":"m","object":"`+r.head()+`","type":"commit"}`, status, "")
		}
		t.call("owner", "POST "+organizationMigrations+` {"repositories":["acme/widgets"]}`, 201, "")
		tag(0, 201)
		t.call("owner", "POST "+organizationMigrations+` {"repositories":["acme/widgets"],"lock_repositories":true}`, 201, "")
		t.call("owner", "POST "+userMigrations+` {"repositories":["acme/widgets"]}`, 201, "")
		time.Sleep(time.Hour)
		tag(0, 403)
		tag(1, 201)
		t.call("", "GET /repos/acme/widgets/git/tags/"+t.s.world.repositories[0].git.tags[0].sha, 200, "")
		t.call("owner", "DELETE "+configurationsPath+`/detach {"selected_repository_ids":[1001]}`, 409, "")
	})
}
