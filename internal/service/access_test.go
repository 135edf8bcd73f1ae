package service

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/weirgate/weir/policy"
)

// refusalStatus returns the status with which the service refuses an operation, or 0 if the caller may call the
// operation.
func (t *tester) refusalStatus(credential string, op *policy.Operation) int {
	t.Helper()
	path := strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme").Replace(op.Path)
	path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "1")
	req := &request{Request: t.story.NewRequest(credential, op.Method+" "+path)}
	if problem := t.s.parseRequest(req); problem != nil {
		return problem.status
	}
	stopIf(t, req.op.documented == nil || req.op.documented.ID != op.ID, "%s is %s, not %s", path, req.op.ID, op.ID)
	hasTarget, _ := t.s.resolve(req)
	if problem := t.s.authorize(req, hasTarget); problem != nil {
		return problem.status
	}
	return 0
}

// TestOperationsRefuseCallersWithoutAccess covers each line of the tables in Document A
// section 5.4 and Document B section 5.5. The organization owner may call every operation
// that the token permits. Every caller may use the public part of an operation that
// needs no authentication.
func TestOperationsRefuseCallersWithoutAccess(t *testing.T) {
	callers := strings.Fields("owner member outsider security-manager public fine-grained read-only app-user app workflow oauth")
	runWithService(t, func(t *tester) {
		for _, line := range []struct{ operations, statuses string }{
			// administrators may list and get roles; the documents list 404 for all other callers
			{"organization-roles/list organization-roles/get", "0 404 404 404 403 0 403 0 0 403 404"},
			{"organization-roles/list-teams", "0 404 404 404 403 0 0 0 0 403 404"},
			{"organization-roles/assign-team organization-roles/assign-user", "0 404 404 404 403 0 403 0 0 403 404"},
			{"organization-roles/revoke-team organization-roles/revoke-all-team organization-roles/revoke-user organization-roles/revoke-all-user",
				"0 403 403 403 403 0 403 0 0 403 403"},
			{"code-security/list-configurations code-security/list-defaults code-security/get-configuration code-security/detach-configuration",
				"0 403 404 0 403 0 403 0 0 403 404"},
			{"code-security/create-configuration", "0 403 403 0 403 0 403 0 0 403 403"},
			{"organization-members/create-invitation organization-members/cancel-invitation", "0 404 404 404 403 0 403 0 0 403 404"},
			{"organization-members/list-invitation-teams", "0 404 404 404 403 0 0 0 0 403 404"},
			{"organization-members/list-invitations organization-members/list-failed-invitations", "0 0 404 0 403 0 0 0 0 403 404"},
			{"rulesets/create-repository", "0 403 403 403 403 0 403 0 0 403 403"},
			{"rulesets/list-organization", "0 404 404 404 403 0 403 0 0 403 404"},
			{"rulesets/create-organization", "0 403 403 403 403 0 403 0 0 403 403"},
			{"git-tags/create", "0 0 403 0 403 0 403 0 0 0 403"},
			{"watching/set-subscription watching/get-subscription watching/delete-subscription", "0 0 0 0 0 403 403 403 403 0 0"},
			{"migrations/list-organization", "0 403 403 403 403 403 403 403 403 403 403"},
			{"migrations/start-organization", "0 404 404 404 403 403 403 403 403 404 404"},
			{"migrations/list-user migrations/start-user", "0 0 0 0 0 403 403 403 403 403 403"},
			{"organization-members/list organization-members/check rulesets/list-repository rulesets/list-branch-rules git-tags/get watching/list-subscribers",
				"0 0 0 0 0 0 0 0 0 0 0"},
		} {
			for id := range strings.FieldsSeq(line.operations) {
				op := policy.Embedded().Operation(id)
				if got := t.refusalStatus("", op); (got == http.StatusUnauthorized) == (op.Auth == "optional") {
					t.Errorf("%s: got status %d without authentication", id, got)
				}
				var got []string
				for _, credential := range callers {
					got = append(got, itoa(t.refusalStatus(credential, op)))
				}
				failIf(t, strings.Join(got, " ") != line.statuses, "%s: statuses for %v:\ngot  %s\nwant %s", id, callers, strings.Join(got, " "), line.statuses)
			}
		}
	})
}

// TestEveryRoleAndWritePermissionHasARule guards against a missing entry in rights, which
// would admit every caller.
func TestEveryRoleAndWritePermissionHasARule(t *testing.T) {
	for _, op := range policy.Embedded().Operations() {
		needed := op.Role
		if needed == "" && strings.HasSuffix(op.Permission, ": write") {
			needed = op.Permission
		}
		_, known := userRequirements[needed]
		failIf(t, needed != "" && !known, "%s: rights has no entry for %q", op.ID, needed)
	}
}

func TestInvisibleRepositoriesAreHidden(t *testing.T) {
	runWithService(t, func(t *tester) {
		for as, status := range map[string]int{
			"owner": 200, "fine-grained": 200, "read-only": 200, "app-user": 200, "security-manager": 200, "public": 404, "outsider": 404,
		} {
			t.call(as, "GET /repos/acme/secret/dependency-graph/sbom", status, "")
		}
	})
}

func TestScopeHeadersAreSentToClassicTokensOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		const list = "GET /repos/acme/widgets/subscribers"
		w := t.call("owner", list, 200, "X-OAuth-Scopes: admin:org, repo, user")
		failIf(t, w.Header().Values("X-Accepted-OAuth-Scopes") == nil, "got headers %v, want the accepted scopes", w.Header())
		for _, as := range []string{"", "app", "fine-grained"} {
			t.call(as, list, 200, "X-OAuth-Scopes:")
		}
	})
}

func TestRolePermissionAllowsReadingRoles(t *testing.T) {
	runCalls(t, []call{
		{"member", "GET " + acmeRoles, 404, ""},
		{"owner", "PUT " + acmeRoles + "/users/acme-member/2", 204, ""},
		{"member", "GET " + acmeRoles, 200, ""},
		{"member", "GET " + acmeRoles + "/2", 200, ""},
		{"member", "GET " + acmeRoles + "/2/teams", 404, ""},
		{"owner", "DELETE " + acmeRoles + "/users/acme-member/2", 204, ""},
		{"member", "GET " + acmeRoles, 404, ""},
	})
}

func TestInstallationHasNoRightsInOtherOrganizations(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			request    string
			acme, labs int
		}{
			{"GET /orgs/ORG/rulesets", 200, 404},
			{"GET /orgs/ORG/invitations", 200, 404},
			{`POST /orgs/ORG/invitations {"email":"new@example.com"}`, 201, 404},
			{"GET /orgs/ORG/code-security/configurations", 200, 404},
			{"GET /orgs/ORG/organization-roles", 200, 404},
			{"POST /orgs/ORG/rulesets {}", 422, 403},
		} {
			t.call("app", strings.Replace(c.request, "ORG", "acme", 1), c.acme, "")
			t.call("app", strings.Replace(c.request, "ORG", "acme-labs", 1), c.labs, "")
		}
	})
}
