package service

import (
	"net/http"
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
		all := decode[[]jsonObject](t, t.get("owner", organizationMigrations))
		if len(all) != 2 {
			t.Fatalf("got %v, want 2 migrations", all)
		}
		export, imported := all[0], all[1]
		if export["id"] != 802.0 || export["state"] != "exported" || export["exclude_attachments"] != true || export["exclude_releases"] != false ||
			export["owner"].(jsonObject)["type"] != "Organization" || fullNames(export) != "acme/widgets acme/secret" {
			t.Errorf("got export %v", export)
		}
		if _, has := imported["repositories"]; has || imported["id"] != 801.0 || imported["state"] != "imported" {
			t.Errorf("got import %v", imported)
		}
		mine := decode[[]jsonObject](t, t.get("owner", userMigrations))
		if len(mine) != 1 || mine[0]["owner"].(jsonObject)["login"] != "acme-owner" || mine[0]["url"] != "http://api.test/user/migrations/803" {
			t.Errorf("got user migrations %v", mine)
		}
		if body := t.get("member", userMigrations).Body.String(); body != "[]" {
			t.Errorf("got %s, want no migrations of the member", body)
		}
		guid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$`)
		if a, b := export["guid"].(string), imported["guid"].(string); !guid.MatchString(a) || a == b {
			t.Errorf("got GUIDs %s and %s", a, b)
		}
	})
}

// fullNames returns the full names of the repositories of a migration.
func fullNames(migration jsonObject) string {
	var all []string
	repositories, _ := migration["repositories"].([]any)
	for _, r := range repositories {
		all = append(all, r.(jsonObject)["full_name"].(string))
	}
	return strings.Join(all, " ")
}

// TestExcludeOmitsRepositories covers each form of the exclude parameter.
func TestExcludeOmitsRepositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		for query, excluded := range map[string]bool{
			"?exclude=repositories": true, "?exclude[]=repositories": true, "?exclude%5B%5D=repositories": true, "?exclude=x&exclude=repositories": true,
			"": false, "?exclude=": false, "?exclude=owner": false,
		} {
			_, has := decode[[]jsonObject](t, t.get("owner", organizationMigrations+query))[0]["repositories"]
			if has == excluded {
				t.Errorf("query %q: has repositories: %v", query, has)
			}
		}
		for body, excluded := range map[string]bool{`,"exclude":["repositories"]`: true, `,"exclude":[]`: false, ``: false} {
			_, has := decode[jsonObject](t, t.do("owner", http.MethodPost, organizationMigrations, `{"repositories":["acme/empty"]`+body+`}`))["repositories"]
			if has == excluded {
				t.Errorf("body %q: has repositories: %v", body, has)
			}
		}
		for _, m := range decode[[]jsonObject](t, t.get("owner", organizationMigrations))[:3] {
			if fullNames(m) != "acme/empty" {
				t.Errorf("exclude changed the stored migration: %v", m)
			}
		}
		if w := t.get("owner", organizationMigrations+"?per_page=1&exclude[]=repositories"); !strings.Contains(w.Header().Get("Link"),
			`<http://api.test/organizations/4/migrations?exclude%5B%5D=repositories&per_page=1&page=2>; rel="next"`) {
			t.Errorf("got headers %v", w.Header())
		}
	})
}

// TestMigrationsPassThroughTheirStates covers Document B section 3. A migration stays
// listed after its archive has expired.
func TestMigrationsPassThroughTheirStates(t *testing.T) {
	for _, path := range []string{organizationMigrations, userMigrations} {
		runWithService(t, func(t *tester) {
			began := time.Now()
			w := t.do("owner", http.MethodPost, path, `{"repositories":["Acme/Widgets","acme/monolith","acme/widgets"]}`)
			t.wantStatus(w, 201)
			made := decode[jsonObject](t, w)
			if made["id"] != 804.0 || fullNames(made) != "acme/widgets acme/monolith" || made["url"] != "http://api.test"+path+"/804" || w.Header().Get("Location") != made["url"] {
				t.Errorf("%s: got %v and headers %v", path, made, w.Header())
			}
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
				m := decode[[]jsonObject](t, t.get("owner", path))[0]
				if m["id"] != 804.0 || m["state"] != c.state || m["created_at"] != timestamp(began) || m["updated_at"] != timestamp(began.Add(c.since)) || m["guid"] != made["guid"] {
					t.Errorf("%s after %v: got %v", path, c.at, m)
				}
			}
		})
	}
}

// TestMigrationOptionsAreFalseByDefault also checks that org_metadata_only ignores the
// other options.
func TestMigrationOptionsAreFalseByDefault(t *testing.T) {
	shown := []string{"lock_repositories", "exclude_attachments", "exclude_releases", "exclude_owner_projects"}
	runWithService(t, func(t *tester) {
		for _, path := range []string{organizationMigrations, userMigrations} {
			for _, given := range append([]string{"", "exclude_metadata", "exclude_git_data"}, shown...) {
				body := `{"repositories":["acme/empty"],"` + given + `":true}`
				w := t.do("owner", http.MethodPost, path, body)
				t.wantStatus(w, 201)
				made := decode[jsonObject](t, w)
				for _, name := range shown {
					if made[name] != (name == given) {
						t.Errorf("%s %s: %s is %v", path, body, name, made[name])
					}
				}
				if given == "" {
					continue
				}
				w = t.do("owner", http.MethodPost, path, `{"repositories":["acme/empty"],"`+given+`":1}`)
				if w.Code != 422 || !namesField(w, "Migration", given) {
					t.Errorf("%s %s: got %d %s, want 422", path, given, w.Code, w.Body)
				}
			}
			w := t.do("owner", http.MethodPost, path, `{"repositories":[],"org_metadata_only":true,"lock_repositories":true,"exclude_releases":true}`)
			t.wantStatus(w, 201)
			if made := decode[jsonObject](t, w); made["lock_repositories"] != false || made["exclude_releases"] != false || len(made["repositories"].([]any)) != 0 {
				t.Errorf("got migration %v", made)
			}
		}
	})
}

func TestStartMigrationRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		stranger := &repository{owner: &account{login: "other", members: map[string]*membership{}}, name: "parts"}
		t.s.world.repositories = append(t.s.world.repositories, stranger)
		for _, c := range []struct {
			credential, body, field, code string
		}{
			{"owner", ``, "repositories", "missing_field"},
			{"owner", `{"repositories":null}`, "repositories", "missing_field"},
			{"owner", `{"org_metadata_only":true}`, "repositories", "missing_field"},
			{"owner", `{"repositories":[]}`, "repositories", "invalid"},
			{"owner", `{"repositories":["acme/widgets"],"org_metadata_only":true}`, "repositories", "invalid"},
			{"owner", `{"repositories":"acme/widgets"}`, "repositories", "invalid"},
			{"owner", `{"repositories":[1001]}`, "repositories", "invalid"},
			{"owner", `{"repositories":["acme/widgets","acme/none"]}`, "repositories[1]", "invalid"},
			{"owner", `{"repositories":["widgets"]}`, "repositories[0]", "invalid"},
			{"owner", `{"repositories":["acme/widgets",null]}`, "repositories[1]", "invalid"},
			{"owner", `{"repositories":["other/parts"]}`, "repositories[0]", "invalid"},
			{"org-admin", `{"repositories":["acme/secret"]}`, "repositories[0]", "invalid"},
			{"owner", `{"repositories":["acme/widgets"],"exclude":["repositories","owner"]}`, "exclude[1]", "invalid"},
			{"owner", `{"repositories":["acme/widgets"],"exclude":"repositories"}`, "exclude", "invalid"},
			{"owner", `{"repositories":["acme/widgets"],"org_metadata_only":"no"}`, "org_metadata_only", "invalid"},
		} {
			for _, path := range []string{organizationMigrations, userMigrations} {
				w := t.do(c.credential, http.MethodPost, path, c.body)
				if w.Code != 422 || !namesField(w, "Migration", c.field) || !strings.Contains(w.Body.String(), `"code":"`+c.code+`"`) {
					t.Errorf("%s %s: got %d %s, want %s of %s", path, c.body, w.Code, w.Body, c.code, c.field)
				}
			}
		}
		t.wantStatus(t.do("owner", http.MethodPost, userMigrations, `{`), 400)
		w := t.do("member", http.MethodPost, userMigrations, `{"repositories":["acme/widgets"]}`)
		if w.Code != 422 || !namesField(w, "Migration", "repositories[0]") {
			t.Errorf("a member without admin rights: got %d %s", w.Code, w.Body)
		}
		if n := len(t.s.world.migrations); n != 3 {
			t.Errorf("got %d migrations, want the 3 of the seed", n)
		}
	})
}

// TestLockedRepositoriesRefuseTags checks that reads and other repositories still work.
func TestLockedRepositoriesRefuseTags(t *testing.T) {
	runWithService(t, func(t *tester) {
		tag := func(repository int) int {
			r := t.s.world.repositories[repository]
			body := `{"tag":"v9","message":"m","object":"` + r.head() + `","type":"commit"}`
			return t.do("member", http.MethodPost, "/repos/"+r.fullName()+"/git/tags", body).Code
		}
		t.do("owner", http.MethodPost, organizationMigrations, `{"repositories":["acme/widgets"]}`)
		if got := tag(0); got != 201 {
			t.Errorf("got %d before the lock, want 201", got)
		}
		t.do("owner", http.MethodPost, organizationMigrations, `{"repositories":["acme/widgets"],"lock_repositories":true}`)
		t.do("owner", http.MethodPost, userMigrations, `{"repositories":["acme/widgets"]}`)
		time.Sleep(time.Hour)
		if locked, free := tag(0), tag(1); locked != 403 || free != 201 {
			t.Errorf("got %d for the locked repository and %d for another one", locked, free)
		}
		t.wantStatus(t.get("", "/repos/acme/widgets/git/tags/"+t.s.world.repositories[0].tags[0].sha), 200)
		t.wantStatus(t.do("owner", http.MethodDelete, configurationsPath+"/detach", `{"selected_repository_ids":[1001]}`), 409)
	})
}

// TestMigrationsHideInvisibleRepositories uses a token that may list migrations but may not
// see private repositories.
func TestMigrationsHideInvisibleRepositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		w := t.get("org-admin", organizationMigrations)
		t.wantStatus(w, 200)
		if got := fullNames(decode[[]jsonObject](t, w)[0]); got != "acme/widgets" {
			t.Errorf("a token without the scope repo sees %s", got)
		}
	})
}
