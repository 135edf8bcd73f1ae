package policy

import (
	"regexp"
	"strings"
	"testing"
)

// rolePaths matches the paths of operations for owners, administrators, members and users with push access.
var rolePaths = regexp.MustCompile(`/(hooks|keys|traffic|collaborators|invitations|secrets|variables|permissions|protection|alerts|audit-log|teams|installations?|billing|` +
	`settings|blocks|autolinks|interaction-limits|runners|runner-groups|caches?|hosted-runners|outside_collaborators|memberships|members|copilot|codespaces|dismissal-requests|bypass-requests|` +
	`rule-suites|history|deliveries|config|pages|import|migrations|packages|projects|custom|properties|credential-authorizations|personal-access-tokens?(-requests)?|notifications|subscription|feeds|received_events|advisories)(/|$)`)

// TestPublicOperationsNeedNoRole checks the list of the operations that a lent credential may read for anonymous clients.
func TestPublicOperationsNeedNoRole(t *testing.T) {
	allowed := map[string]bool{"users/list-public-keys-for-user": true, "activity/list-received-public-events-for-user": true, "security-advisories/list-global-advisories": true, "security-advisories/get-global-advisory": true}
	catalogue := CatalogueOf("github")
	count := 0
	for _, op := range catalogue.Operations() {
		if !op.Public() {
			continue
		}
		count++
		failIf(t, !op.Safe() || op.Auth != "optional" || op.Personal || op.Role != "" && op.Role != "read access to the repository" || rolePaths.MatchString(op.Path) && !allowed[op.ID], "%s %s %s is not public", op.ID, op.Method, op.Path)
		for _, prefix := range []string{"/enterprises/", "/admin/", "/setup/", "/manage/", "/scim/", "/user/", "/teams/"} {
			failIf(t, strings.HasPrefix(op.Path, prefix), "%s %s is not public", op.ID, op.Path)
		}
	}
	failIf(t, count != len(publicOperations), "public.yaml lists %d operations, and the catalogue has %d of them", len(publicOperations), count)
	for _, id := range []string{"repos/get", "repos/get-latest-release", "users/get-by-username", "issues/list-for-repo", "git/get-ref", "watching/list-subscribers"} {
		op := catalogue.Operation(id)
		failIf(t, op == nil || !op.Public(), "%s is not public", id)
	}
}
