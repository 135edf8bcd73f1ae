package service

import (
	"net/http"
)

// documentedHandlers are the handlers of the documents' operations, by ID.
var documentedHandlers = map[string]handler{
	"codes-of-conduct/list":      listCodesOfConduct,
	"codes-of-conduct/get":       getCodeOfConduct,
	"gitignore/list-templates":   listTemplates,
	"gitignore/get-template":     getTemplate,
	"rate-limit/get":             rateLimit,
	"statistics/code-frequency":  statistics(codeFrequency),
	"statistics/commit-activity": statistics(commitActivity),
	"statistics/contributors":    statistics(contributors),
	"statistics/participation":   statistics(participation),
	"statistics/punch-card":      statistics(punchCard),

	"git-tags/create": withObjects(createTag),
	"git-tags/get":    withObjects(getTag),

	"dependency-graph/export-sbom": exportSBOM,

	"feeds/get": listFeeds,

	"graphql":               graphQL,
	"app-manifests/convert": convertManifest,

	"search/code":    searchIn("FileContent", fileDocuments),
	"search/commits": searchIn("Commit", commitDocuments),
	"search/issues":  searchIn("Issue", issueDocuments),
	"search/other":   searchOther,

	"watching/list-subscribers":    listSubscribers,
	"watching/get-subscription":    withUser(getSubscription),
	"watching/set-subscription":    withUser(setSubscription),
	"watching/delete-subscription": withUser(deleteSubscription),
	"watching/list-mine":           withUser(listWatched),
	"watching/list-of-user":        listWatchedOfUser,

	"organization-members/list":         listMembers,
	"organization-members/check":        checkMember,
	"organization-members/check-public": checkPublicMember,

	"organization-members/list-invitations":        listInvitations,
	"organization-members/list-failed-invitations": listFailedInvitations,
	"organization-members/create-invitation":       createInvitation,
	"organization-members/cancel-invitation":       cancelInvitation,
	"organization-members/list-invitation-teams":   listInvitationTeams,

	"organization-roles/list":            listRoles,
	"organization-roles/get":             getRole,
	"organization-roles/list-teams":      listTeamsOfRole,
	"organization-roles/assign-team":     changeAssignment,
	"organization-roles/assign-user":     changeAssignment,
	"organization-roles/revoke-team":     changeAssignment,
	"organization-roles/revoke-user":     changeAssignment,
	"organization-roles/revoke-all-team": changeAssignment,
	"organization-roles/revoke-all-user": changeAssignment,

	"rulesets/list-repository":   listRulesets,
	"rulesets/list-organization": listRulesets,
	"rulesets/list-branch-rules": listBranchRules,

	"rulesets/create-repository":   createRuleset,
	"rulesets/create-organization": createRuleset,

	"code-security/list-configurations":  listConfigurations,
	"code-security/create-configuration": createConfiguration,
	"code-security/list-defaults":        listDefaultConfigurations,
	"code-security/detach-configuration": detachConfigurations,
	"code-security/get-configuration":    getConfiguration,

	"migrations/list-organization":  listMigrations,
	"migrations/start-organization": startMigration,
	"migrations/list-user":          listMigrations,
	"migrations/start-user":         startMigration,
}

// getIndex returns the URI templates of some operations.
func getIndex(_ *Service, req *request) response {
	return response{status: http.StatusOK, body: object{
		{"code_search_url", req.base + "/search/code?q={query}{&page,per_page,sort,order}"},
		{"commit_search_url", req.base + "/search/commits?q={query}{&page,per_page,sort,order}"},
		{"feeds_url", req.base + "/feeds"},
		{"issue_search_url", req.base + "/search/issues?q={query}{&page,per_page,sort,order}"},
		{"rate_limit_url", req.base + "/rate_limit"},
		{"user_subscriptions_url", req.base + "/user/subscriptions"},
	}}
}
