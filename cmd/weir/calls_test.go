package main

import (
	"strings"

	"github.com/weirgate/weir/internal/testservers"
)

// visits are the calls of one operation.
type visits struct {
	// valid calls succeed. The default status is the success status of the operation.
	valid []call
	// invalid calls are refused because of their input. The body of a 422 names the field.
	invalid []call
	// unauthorized calls are refused because of their caller with 401, 403 or 404.
	unauthorized []call
	// records are the documented records of objects in the response to the last valid call,
	// by the path of the object.
	records map[string]string
}

// call is one request.
type call struct {
	// as is a token of the seed, user:password, or empty.
	as string
	// method and target default to the values of the operation. Parameters in braces are filled in.
	method, target string
	body           string
	header         map[string]string
	// status is the expected status. field is the field that the body of a refusal names.
	status int
	field  string
}

// calls are the calls of every operation, sorted by ID. Some calls change the state for later
// calls.
var calls = map[string]visits{
	"codes-of-conduct/list": {
		valid:   []call{{}, {as: "tok-owner"}},
		records: map[string]string{"0": "key:string name:string url:string html_url:string"},
	},
	"codes-of-conduct/get": {
		valid:   []call{{}},
		invalid: []call{{target: "/codes_of_conduct/none", status: 404}},
		records: map[string]string{"": "key:string name:string url:string html_url:string body:string"},
	},
	"gitignore/list-templates": {valid: []call{{}, {as: "tok-owner", header: map[string]string{"If-None-Match": "*"}, status: 304}, {method: "HEAD"}}},
	"gitignore/get-template": {
		valid: []call{
			{}, {target: "/gitignore/templates/C%2B%2B"}, {header: map[string]string{"Accept": "application/vnd.service.raw+json"}}, {header: map[string]string{"Accept": "*/*"}},
		},
		invalid: []call{{target: "/gitignore/templates/none", status: 404}},
		records: map[string]string{"": "name:string source:string"},
	},
	"rate-limit/get": {
		valid:   []call{{}, {as: "tok-owner"}, {as: "tok-workflow"}},
		records: map[string]string{"": "resources:{} rate:{}", "rate": testservers.RateLimitSchema, "resources.core": testservers.RateLimitSchema},
	},

	"statistics/code-frequency":  onRepositories("/stats/code_frequency", 422, 204),
	"statistics/commit-activity": onRepositories("/stats/commit_activity", 200, 204).with(map[string]string{"0": "days:[]int total:int week:int"}),
	"statistics/contributors":    onRepositories("/stats/contributors", 200, 204).with(map[string]string{"0": "author:{} total:int weeks:[]{}", "0.author": testservers.UserSchema, "0.weeks.0": "w:int a:int d:int c:int"}),
	"statistics/participation":   onRepositories("/stats/participation", 200, 200).with(map[string]string{"": "all:[]int owner:[]int"}),
	"statistics/punch-card":      onRepositories("/stats/punch_card", 200, 204),

	"search/code": {
		valid: []call{
			{as: "tok-owner", target: "/search/code?q=gear", header: map[string]string{"Accept": "application/vnd.service.text-match+json"}},
			{as: "tok-owner", target: "/search/code?q=widget&per_page=5"},
		},
		invalid: []call{
			{as: "tok-outsider", target: "/search/code?q=key+repo:acme/secret", status: 422, field: "q"},
			{as: "tok-owner", target: "/search/code?q=repo:acme/widgets", status: 422, field: "q"},
			{as: "tok-owner", target: "/search/code?q=" + strings.Repeat("x", 257), status: 422, field: "q"},
		},
		unauthorized: []call{{target: "/search/code?q=gear", status: 401}},
		records: map[string]string{
			"": testservers.SearchSchema, "items.0.repository": testservers.FoundRepositorySchema, "items.0.repository.owner": testservers.UserSchema,
			"items.0": "name:string path:string sha:string url:string git_url:string html_url:string repository:{} score:number",
		},
	},
	"search/commits": {
		valid: []call{{target: "/search/commits?q=gear+repo:acme/widgets", status: 200}},
		invalid: []call{
			{target: "/search/commits", status: 422, field: "q"}, {target: "/search/commits?q=a" + strings.Repeat("+OR+a", 6), status: 422, field: "q"},
		},
		records: map[string]string{"": testservers.SearchSchema},
	},
	"search/issues": {
		valid:   []call{{target: "/search/issues?q=gear+label:bug", status: 200}},
		invalid: []call{{target: "/search/issues?q=", status: 422, field: "q"}},
		records: map[string]string{"": testservers.SearchSchema},
	},
	"search/other": {
		valid:   []call{{target: "/search/users?q=acme", status: 200}},
		invalid: []call{{target: "/search/users", status: 422, field: "q"}},
		records: map[string]string{"": testservers.SearchSchema},
	},

	"watching/list-subscribers": onRepositories("/subscribers", 200, 200).with(map[string]string{"0": testservers.UserSchema}).and(
		call{target: "/repos/acme/widgets/subscribers?page=2&per_page=10"}, call{target: "/repositories/1001/subscribers?page=3"}),
	"watching/get-subscription": {
		valid:        []call{{as: "tok-member", method: "PUT", body: `{"ignored":true}`}, {as: "tok-member"}},
		records:      map[string]string{"": testservers.SubscriptionSchema},
		invalid:      []call{{as: "tok-member", target: "/repos/acme/monolith/subscription", status: 404}},
		unauthorized: []call{{as: "tok-app", status: 403}, {status: 401}, {as: "tok-outsider", target: "/repos/acme/secret/subscription", status: 404}},
	},
	"watching/set-subscription": {
		valid: []call{
			{as: "tok-member", target: "/repos/Acme/widgets/subscription", body: `{"subscribed":true}`},
			{as: "tok-member", method: "GET", target: "/user/subscriptions"}, {method: "GET", target: "/repos/acme/widgets/subscribers?per_page=100"},
			{as: "tok-member", method: "GET"},
		},
		invalid: []call{
			{as: "tok-member", body: `{"subscribed":3}`, status: 422, field: "subscribed"}, {as: "tok-member", body: `{`, status: 400},
		},
		unauthorized: []call{{as: "tok-fine-grained", body: `{}`, status: 403}, {as: "tok-app-user", body: `{}`, status: 403}},
		records:      map[string]string{"": testservers.SubscriptionSchema},
	},
	"watching/delete-subscription": {
		valid:        []call{{as: "tok-owner"}},
		invalid:      []call{{as: "tok-owner", method: "GET", status: 404}},
		unauthorized: []call{{status: 401}},
	},
	"watching/list-mine": {
		valid: []call{
			{as: "tok-outsider"}, {as: "tok-member", method: "PUT", target: "/repos/acme/widgets/subscription", body: `{"subscribed":true}`}, {as: "tok-member"},
		},
		unauthorized: []call{{status: 401}},
		records: map[string]string{"0": testservers.RepositorySchema, "0.owner": testservers.UserSchema, "0.permissions": "admin:bool push:bool pull:bool",
			"0.security_and_analysis":                 "advanced_security:{} secret_scanning:{} secret_scanning_push_protection:{} secret_scanning_non_provider_patterns:{}",
			"0.security_and_analysis.secret_scanning": "status:string"},
	},
	"watching/list-of-user": {
		valid: []call{{target: "/user/45/subscriptions"}, {target: "/users/watcher-01/subscriptions?per_page=1&page=2"}, {target: "/users/watcher-01/subscriptions"}},
		invalid: []call{
			{target: "/users/none/subscriptions", status: 404}, {target: "/users/acme/subscriptions", status: 404},
			{target: "/user/4/subscriptions", status: 404}, {target: "/user/999/subscriptions", status: 404},
		},
		records: map[string]string{"0": testservers.RepositorySchema},
	},

	"organization-members/list": {
		valid: []call{
			{}, {as: "tok-workflow", target: "/orgs/acme/members?page=2"}, {as: "tok-member", target: "/orgs/ACME/members?per_page=100"},
			{as: "tok-owner", target: "/orgs/acme/members?filter=2fa_disabled"},
		},
		invalid: []call{
			{as: "tok-member", target: "/orgs/acme/members?filter=2fa_disabled", status: 422, field: "filter"},
			{as: "tok-member", target: "/orgs/acme/members?role=boss", status: 422, field: "role"}, {target: "/orgs/none/members", status: 404},
		},
		records: map[string]string{"0": testservers.UserSchema},
	},
	"organization-members/check": {
		valid:   []call{{as: "tok-member"}, {status: 302}},
		invalid: []call{{as: "tok-member", target: "/orgs/acme/members/outsider", status: 404}},
	},
	"organization-members/check-public": {
		valid:   []call{{target: "/orgs/acme/public_members/acme-owner", status: 204}},
		invalid: []call{{target: "/orgs/acme/public_members/outsider", status: 404}},
	},

	"organization-members/list-invitations": {
		valid: []call{
			{as: "tok-member", target: "/organizations/4/invitations?per_page=3&page=2"}, {as: "tok-read-only", target: "/orgs/Acme/invitations?role=admin"},
			{as: "tok-app", target: "/orgs/acme/invitations?role=all&invitation_source=member"}, {as: "tok-owner"},
		},
		invalid: []call{
			{as: "tok-owner", target: "/orgs/acme/invitations?role=boss", status: 422, field: "role"},
			{as: "tok-owner", target: "/orgs/acme/invitations?invitation_source=mail", status: 422, field: "invitation_source"}, {as: "tok-owner", target: "/orgs/none/invitations", status: 404},
		},
		unauthorized: []call{{as: "tok-outsider", status: 404}, {as: "tok-workflow", status: 403}},
		records:      map[string]string{"0": testservers.InvitationSchema, "0.inviter": testservers.UserSchema},
	},
	"organization-members/list-failed-invitations": {
		valid:        []call{{as: "tok-owner", target: "/orgs/acme-labs/failed_invitations"}, {as: "tok-member", target: "/orgs/acme/failed_invitations?per_page=5"}, {as: "tok-owner"}},
		invalid:      []call{{as: "tok-owner", target: "/orgs/none/failed_invitations", status: 404}},
		unauthorized: []call{{as: "tok-outsider", status: 404}, {as: "tok-workflow", status: 403}},
		records:      map[string]string{"0": testservers.InvitationSchema, "0.inviter": testservers.UserSchema},
	},
	"organization-members/create-invitation": {
		valid: []call{
			{as: "tok-owner", method: "GET", target: "/orgs/acme/invitations?per_page=100", status: 200},
			{as: "tok-app", target: "/orgs/Acme/invitations", body: `{"email":"new@example.com"}`}, {as: "tok-owner", body: `{"email":"leaver@example.com","role":"reinstate"}`},
			{as: "tok-owner", method: "GET", target: "/orgs/acme/invitations?per_page=100", status: 200},
			{as: "tok-owner", body: `{"invitee_id":3,"role":"admin","team_ids":[201,204]}`},
		},
		invalid: []call{
			{as: "tok-owner", body: `{}`, status: 422, field: "invitee_id"}, {as: "tok-owner", body: `{"email":"new@example.com"}`, status: 422, field: "email"},
			{as: "tok-owner", body: `{"invitee_id":2}`, status: 422, field: "invitee_id"}, {as: "tok-owner", body: `{"email":"nobody"}`, status: 422, field: "email"},
			{as: "tok-owner", body: `{"invitee_id":50,"role":"reinstate"}`, status: 422, field: "role"}, {as: "tok-owner", body: `{"invitee_id":50,"team_ids":[201,299]}`, status: 422, field: "team_ids[1]"},
			{as: "tok-owner", body: `{`, status: 400}, {as: "tok-owner", target: "/orgs/none/invitations", body: `{}`, status: 404},
		},
		unauthorized: []call{{as: "tok-member", body: `{"invitee_id":50}`, status: 404}, {as: "tok-outsider", body: `{}`, status: 404}, {as: "tok-read-only", body: `{}`, status: 403}},
		records:      map[string]string{"": testservers.NewInvitationSchema, "inviter": testservers.UserSchema},
	},
	"organization-members/cancel-invitation": {
		valid: []call{
			{as: "tok-owner", method: "GET", target: "/orgs/acme/invitations", status: 200}, {as: "tok-owner", method: "GET", target: "/orgs/acme/invitations/3/teams", status: 200},
			{as: "tok-owner", target: "/orgs/acme/invitations/3"},
			{as: "tok-owner", method: "GET", target: "/orgs/acme/invitations", status: 200}, {as: "tok-owner", method: "GET", target: "/orgs/acme/invitations/3/teams", status: 404},
		},
		invalid: []call{
			{as: "tok-owner", target: "/orgs/acme/invitations/3", status: 404}, {as: "tok-owner", target: "/orgs/acme/invitations/9", status: 422, field: "invitation_id"},
			{as: "tok-owner", target: "/orgs/acme-labs/invitations/1", status: 404},
		},
		unauthorized: []call{{as: "tok-member", status: 404}, {as: "tok-read-only", status: 403}},
	},
	"organization-members/list-invitation-teams": {
		valid: []call{
			{as: "tok-app", target: "/organizations/4/invitations/7/teams?per_page=2&page=2"}, {as: "tok-owner", target: "/orgs/acme/invitations/2/teams"}, {as: "tok-owner"},
		},
		invalid:      []call{{as: "tok-owner", target: "/orgs/acme/invitations/99/teams", status: 404}},
		unauthorized: []call{{as: "tok-member", status: 404}, {as: "tok-workflow", status: 403}},
		records:      map[string]string{"0": testservers.TeamSchema},
	},

	"organization-roles/list": onRoles("", 404).with(map[string]string{"": "total_count:int roles:[]{}", "roles.0": testservers.RoleSchema, "roles.0.organization": testservers.UserSchema}),
	"organization-roles/get": onRoles("/1", 404).with(map[string]string{
		"": testservers.RoleSchema, "organization": testservers.OrganizationSchema,
	}).but(call{as: "tok-owner", target: "/orgs/acme/organization-roles/99", status: 404}),
	"organization-roles/list-teams": onRoles("/3/teams", 404).with(map[string]string{"0": testservers.TeamSchema}).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/99/teams", status: 404}),
	"organization-roles/assign-team": onRoles("/teams/coils/2", 404).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/teams/coils/99", status: 404}, call{as: "tok-owner", target: "/orgs/acme/organization-roles/teams/none/2", status: 404}).and(
		call{as: "tok-owner", method: "GET", target: "/orgs/acme/organization-roles/2/teams", status: 200}),
	"organization-roles/assign-user": onRoles("/users/acme-member/3", 404).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/users/outsider/3", status: 422, field: "username"},
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/users/none/3", status: 404}, call{as: "tok-owner", target: "/orgs/acme/organization-roles/users/acme-member/99", status: 404}),
	"organization-roles/revoke-team": onRoles("/teams/audit/3", 403).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/teams/audit/99", status: 404}, call{as: "tok-owner", target: "/orgs/acme/organization-roles/teams/none/3", status: 404}).and(
		call{as: "tok-owner", method: "GET", target: "/orgs/acme/organization-roles/3/teams", status: 200}),
	"organization-roles/revoke-all-team": onRoles("/teams/release", 403).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/teams/none", status: 404}).and(
		call{as: "tok-owner", method: "GET", target: "/orgs/acme/organization-roles/2/teams", status: 200}),
	"organization-roles/revoke-user": onRoles("/users/acme-member/3", 403).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/users/none/3", status: 404}, call{as: "tok-owner", target: "/orgs/acme/organization-roles/users/acme-member/99", status: 404}),
	"organization-roles/revoke-all-user": onRoles("/users/acme-member", 403).but(
		call{as: "tok-owner", target: "/orgs/acme/organization-roles/users/none", status: 404}),

	"rulesets/list-repository": onRepositories("/rulesets", 200, 200).with(map[string]string{"0": testservers.RulesetSchema, "0._links": "self:{} html:{}"}).and(
		call{target: "/repos/acme/widgets/rulesets?includes_parents=false"}),
	"rulesets/list-organization": {
		valid:        []call{{as: "tok-owner"}},
		invalid:      []call{{as: "tok-owner", target: "/orgs/none/rulesets", status: 404}},
		unauthorized: []call{{as: "tok-member", status: 404}, {status: 401}},
		records:      map[string]string{"0": testservers.RulesetSchema},
	},
	"rulesets/create-repository": {
		valid: []call{
			{as: "tok-owner", body: `{"name":"none","enforcement":"disabled"}`, status: 201},
			{as: "tok-owner", body: `{"name":"some","target":"branch","enforcement":"active","bypass_actors":[{"actor_id":1,"actor_type":"OrganizationAdmin","bypass_mode":"always"}],
				"conditions":{"ref_name":{"include":["~DEFAULT_BRANCH"],"exclude":[]}},"rules":[{"type":"max_file_size","parameters":{"max_file_size":5}}]}`, status: 201},
			{method: "GET", target: "/repos/acme/widgets/rules/branches/main", status: 200}, {method: "GET", status: 200},
			{as: "tok-app", body: `{"name":"by the app","enforcement":"evaluate"}`, status: 201},
		},
		invalid: []call{
			{as: "tok-owner", body: `{"enforcement":"active"}`, status: 422, field: "name"}, {as: "tok-owner", body: `{"name":"some","enforcement":"active"}`, status: 422, field: "name"},
			{as: "tok-owner", body: `{"name":"n","enforcement":"on"}`, status: 422, field: "enforcement"},
			{as: "tok-owner", body: `{"name":"n","enforcement":"active","bypass_actors":[{"actor_type":"DeployKey","bypass_mode":"pull_request"}]}`, status: 422, field: "bypass_actors[0].bypass_mode"},
			{as: "tok-owner", body: `{"name":"n","enforcement":"active","conditions":{"repository_id":{"repository_ids":[1]}}}`, status: 422, field: "conditions.repository_id"},
			{as: "tok-owner", body: `{"name":"n","enforcement":"active","rules":[{"type":"update"}]}`, status: 422, field: "rules[0].parameters"},
			{as: "tok-owner", body: `{`, status: 400}, {as: "tok-owner", target: "/repos/acme/none/rulesets", body: `{}`, status: 404},
		},
		unauthorized: []call{{as: "tok-member", body: `{}`, status: 403}, {as: "tok-outsider", target: "/repos/acme/secret/rulesets", body: `{}`, status: 404}},
		records:      map[string]string{"": testservers.NewRulesetSchema},
	},
	"rulesets/create-organization": {
		valid: []call{
			{as: "tok-owner", body: `{"name":"by name","enforcement":"active","rules":[{"type":"creation"}],
				"conditions":{"ref_name":{"include":["~ALL"]},"repository_name":{"include":["wid*"],"protected":true}}}`, status: 201},
			{as: "tok-owner", method: "GET", status: 200}, {method: "GET", target: "/repos/acme/widgets/rulesets", status: 200},
			{method: "GET", target: "/repos/acme/widgets/rules/branches/main", status: 200}, {method: "GET", target: "/repos/acme/monolith/rules/branches/main", status: 200},
			{as: "tok-owner", body: `{"name":"by property","enforcement":"active","conditions":{"ref_name":{},"repository_property":{"include":[{"name":"team","property_values":["parts"]}]}}}`, status: 201},
		},
		invalid: []call{
			{as: "tok-owner", body: `{"name":"n","enforcement":"active"}`, status: 422, field: "conditions"},
			{as: "tok-owner", body: `{"name":"n","enforcement":"active","conditions":{"ref_name":{},"repository_name":{},"repository_id":{"repository_ids":[]}}}`, status: 422, field: "conditions"},
			{as: "tok-owner", body: `{"name":"n","enforcement":"active","conditions":{"repository_name":{}}}`, status: 422, field: "conditions.ref_name"},
			{as: "tok-owner", body: `{"name":"by name","enforcement":"active","conditions":{"ref_name":{},"repository_name":{}}}`, status: 422, field: "name"},
			{as: "tok-owner", target: "/orgs/acme-labs/rulesets", body: `{"name":"n","enforcement":"evaluate","conditions":{"ref_name":{},"repository_name":{}}}`, status: 422, field: "enforcement"},
			{as: "tok-owner", target: "/orgs/none/rulesets", body: `{}`, status: 404},
		},
		unauthorized: []call{{as: "tok-member", body: `{}`, status: 403}, {as: "tok-outsider", body: `{}`, status: 403}},
		records:      map[string]string{"": testservers.NewRulesetSchema, "conditions.repository_property.include.0": "name:string property_values:[]string source:string"},
	},
	"rulesets/list-branch-rules": {
		valid: []call{
			{target: "/repos/acme/widgets/rules/branches/release/1.x"}, {target: "/repos/acme/widgets/rules/branches/release%2F1.x"}, {},
		},
		invalid: []call{
			{target: "/repos/acme/none/rules/branches/main", status: 404}, {target: "/repos/acme/widgets/rules/branches/release/*", status: 422, field: "branch"},
		},
		records: map[string]string{"0": "type:string ruleset_source_type:string ruleset_source:string ruleset_id:int parameters:{}"},
	},

	"git-tags/create": {
		valid: []call{{as: "tok-member", body: `{"tag":"v3","message":"m","object":"{head}","type":"commit"}`}},
		invalid: []call{
			{as: "tok-member", body: `{"tag":"v2","message":"m","object":"` + strings.Repeat("0", 40) + `","type":"commit"}`, status: 422, field: "object"},
			{as: "tok-member", body: `{"tag":"v2"}`, status: 422, field: "message"}, {as: "tok-member", target: "/repos/acme/empty/git/tags", body: `{}`, status: 409},
		},
		unauthorized: []call{{as: "tok-outsider", body: `{}`, status: 403}, {body: `{}`, status: 401}, {as: "tok-read-only", body: `{}`, status: 403}},
		records: map[string]string{
			"": testservers.TagSchema, "tagger": "name:string email:string date:time", "object": "type:string sha:string url:string",
			"verification": "verified:bool reason:string signature:string? payload:string?",
		},
	},
	"git-tags/get": {
		valid: []call{{}},
		invalid: []call{
			{target: "/repos/acme/widgets/git/tags/" + strings.Repeat("0", 40), status: 404}, {target: "/repos/acme/empty/git/tags/00", status: 409},
		},
		unauthorized: []call{{as: "tok-outsider", target: "/repos/acme/secret/git/tags/00", status: 404}},
		records:      map[string]string{"": testservers.TagSchema},
	},
	"dependency-graph/export-sbom": onRepositories("/dependency-graph/sbom", 200, 200).with(map[string]string{
		"": "sbom:{}", "sbom.creationInfo": "created:time creators:[]string",
		"sbom": `SPDXID:string spdxVersion:string creationInfo:{} name:string dataLicense:string documentDescribes:[]string
			documentNamespace:string packages:[]{}`,
		"sbom.packages.0": `SPDXID:string name:string versionInfo:string downloadLocation:string licenseConcluded:string licenseDeclared:string
			copyrightText:string filesAnalyzed:bool`,
	}),

	"feeds/get": {
		valid: []call{
			{}, {as: "acme-owner:tok-owner"}, {as: "tok-owner"}, {as: "oauth-app:oauth-secret"},
			{target: "/feeds/timeline"}, {target: "/feeds/timeline", header: map[string]string{"Accept": "application/atom+xml"}}, {target: "/feeds/security-advisories"},
			{target: "/feeds/users/acme-member"}, {target: "/feeds/users/acme-owner/private?token=feed-acme-owner"}, {as: "acme-owner:tok-owner", target: "/feeds/users/acme-owner/private"},
			{target: "/feeds/users/acme-owner/actor?token=feed-acme-owner", header: map[string]string{"Accept": "application/atom+xml"}},
			{as: "acme-owner:tok-owner", target: "/feeds/users/acme-owner/organizations/acme"}, {as: "tok-owner"}, {as: "acme-owner:tok-owner"},
		},
		invalid: []call{{target: "/feeds/none", status: 404}, {target: "/feeds/users/none", status: 404}},
		unauthorized: []call{
			{target: "/feeds/users/acme-owner/private", status: 401}, {as: "tok-owner", target: "/feeds/users/acme-owner/private", status: 401},
			{target: "/feeds/users/acme-owner/private?token=feed-outsider", status: 404}, {as: "acme-owner:tok-owner", target: "/feeds/users/outsider/private", status: 404},
		},
		records: map[string]string{
			"": testservers.FeedsSchema, "_links": testservers.FeedLinksSchema,
			"_links.current_user": "href:string type:string", "_links.current_user_organizations.0": "href:string type:string",
		},
	},

	"code-security/list-configurations": {
		valid: []call{
			{as: "tok-security-manager", target: configurations + "?per_page=1"}, {as: "tok-owner", target: configurations + "?per_page=1&after=Y3Vyc29yOnYxOjE"},
			{as: "tok-app", target: "/organizations/4/code-security/configurations?before=Y3Vyc29yOnYxOjM&per_page=1&target_type=all"},
			{as: "tok-fine-grained", target: configurations + "?target_type=global"}, {as: "tok-owner"},
		},
		invalid: []call{
			{as: "tok-owner", target: configurations + "?target_type=organization", status: 422, field: "target_type"},
			{as: "tok-owner", target: configurations + "?after=1", status: 422, field: "after"}, {as: "tok-owner", target: configurations + "?before=1", status: 422, field: "before"},
			{as: "tok-owner", target: "/orgs/none/code-security/configurations", status: 404},
		},
		unauthorized: []call{{as: "tok-member", status: 403}, {as: "tok-outsider", status: 404}, {as: "tok-public", status: 403}, {as: "tok-read-only", status: 403}},
		records:      map[string]string{"0": testservers.ConfigurationSchema, "0.dependency_graph_autosubmit_action_options": "labeled_runners:bool"},
	},
	"code-security/create-configuration": {
		valid: []call{
			{as: "tok-owner", body: `{"name":"Much","description":"d","dependency_graph_autosubmit_action_options":{"labeled_runners":true},"enforcement":"unenforced"}`},
			{as: "tok-owner", method: "GET", status: 200}, {as: "tok-security-manager", body: `{"name":"Little","description":"d"}`},
		},
		invalid: []call{
			{as: "tok-owner", status: 422, field: "name"}, {as: "tok-owner", body: `{"name":"MUCH","description":"d"}`, status: 422, field: "name"},
			{as: "tok-owner", body: `{"name":"Other"}`, status: 422, field: "description"}, {as: "tok-owner", body: `{"name":"Other","description":3}`, status: 422, field: "description"},
			{as: "tok-owner", body: `{"name":"Other","description":"d","advanced_security":"not_set"}`, status: 422, field: "advanced_security"},
			{as: "tok-owner", body: `{"name":"Other","description":"d","dependency_graph_autosubmit_action_options":{"labeled_runners":"no"}}`,
				status: 422, field: "dependency_graph_autosubmit_action_options.labeled_runners"},
			{as: "tok-owner", body: `{`, status: 400}, {as: "tok-owner", target: "/orgs/none/code-security/configurations", body: `{}`, status: 404},
		},
		unauthorized: []call{{as: "tok-member", body: `{}`, status: 403}, {as: "tok-outsider", body: `{}`, status: 403}},
		records:      map[string]string{"": testservers.ConfigurationSchema, "dependency_graph_autosubmit_action_options": "labeled_runners:bool"},
	},
	"code-security/list-defaults": {
		valid:        []call{{as: "tok-security-manager"}, {as: "tok-owner", header: map[string]string{"If-None-Match": "*"}, status: 304}, {as: "tok-owner"}},
		invalid:      []call{{as: "tok-owner", target: "/orgs/none/code-security/configurations/defaults", status: 404}},
		unauthorized: []call{{as: "tok-member", status: 403}, {as: "tok-outsider", status: 404}},
		records:      map[string]string{"0": "default_for_new_repos:string configuration:{}", "0.configuration": testservers.ConfigurationSchema, "1.configuration": testservers.ConfigurationSchema},
	},
	"code-security/detach-configuration": {
		valid: []call{{as: "tok-owner", body: `{"selected_repository_ids":[1001,1003]}`}},
		invalid: []call{
			{as: "tok-owner", status: 400, field: "selected_repository_ids"}, {as: "tok-owner", body: `{"selected_repository_ids":"1001"}`, status: 400, field: "selected_repository_ids"},
			{as: "tok-owner", body: `{"selected_repository_ids":[1001,1]}`, status: 404},
			{as: "tok-owner", method: "POST", target: "/orgs/acme/migrations", body: `{"repositories":["acme/empty"],"lock_repositories":true}`, status: 201},
			{as: "tok-owner", body: `{"selected_repository_ids":[1003]}`, status: 409},
		},
		unauthorized: []call{{as: "tok-member", body: `{"selected_repository_ids":[1002]}`, status: 403}, {as: "tok-outsider", body: `{"selected_repository_ids":[1002]}`, status: 404}},
	},
	"code-security/get-configuration": {
		valid:        []call{{as: "tok-app", target: configurations + "/3"}, {as: "tok-owner"}},
		invalid:      []call{{as: "tok-owner", target: configurations + "/99", status: 404}},
		unauthorized: []call{{as: "tok-member", status: 403}, {as: "tok-outsider", status: 404}},
		records:      map[string]string{"": testservers.ConfigurationSchema},
	},

	"migrations/list-organization": {
		valid: []call{
			{as: "tok-owner", target: "/orgs/acme/migrations?exclude[]=repositories"}, {as: "tok-owner", target: "/orgs/acme/migrations?exclude=repositories&per_page=1"},
			{as: "tok-owner", target: "/organizations/4/migrations?page=2&per_page=1"}, {as: "tok-owner"},
		},
		invalid:      []call{{as: "tok-owner", target: "/orgs/none/migrations", status: 404}},
		unauthorized: []call{{as: "tok-member", status: 403}, {as: "tok-outsider", status: 403}},
		records:      map[string]string{"0": testservers.MigrationSchema, "0.owner": testservers.UserSchema, "0.repositories.0": testservers.MigratedSchema, "0.repositories.0.license": testservers.LicenseSchema},
	},
	"migrations/start-organization": {
		valid: []call{
			{as: "tok-owner", body: `{"repositories":["acme/empty"],"exclude":["repositories"]}`}, {as: "tok-owner", method: "GET", status: 200},
			{as: "tok-owner", body: `{"repositories":[],"org_metadata_only":true}`}, {as: "tok-owner", body: `{"repositories":["Acme/Widgets"],"exclude_releases":true}`},
		},
		invalid: []call{
			{as: "tok-owner", status: 422, field: "repositories"}, {as: "tok-owner", body: `{"repositories":[]}`, status: 422, field: "repositories"},
			{as: "tok-owner", body: `{"repositories":["acme/widgets"],"org_metadata_only":true}`, status: 422, field: "repositories"},
			{as: "tok-owner", body: `{"repositories":["acme/widgets","acme/none"]}`, status: 422, field: "repositories[1]"},
			{as: "tok-owner", body: `{"repositories":["acme/widgets"],"lock_repositories":"no"}`, status: 422, field: "lock_repositories"},
			{as: "tok-owner", body: `{"repositories":["acme/widgets"],"exclude":["owner"]}`, status: 422, field: "exclude[0]"},
			{as: "tok-owner", body: `{`, status: 400}, {as: "tok-owner", target: "/orgs/none/migrations", body: `{}`, status: 404},
		},
		unauthorized: []call{{as: "tok-member", body: `{"repositories":["acme/empty"]}`, status: 404}, {as: "tok-outsider", body: `{}`, status: 404}},
		records:      map[string]string{"": testservers.MigrationSchema, "owner": testservers.UserSchema, "repositories.0": testservers.MigratedSchema},
	},
	"migrations/list-user": {
		valid:        []call{{as: "tok-member"}, {as: "tok-owner"}},
		unauthorized: []call{{as: "tok-workflow", status: 403}, {as: "oauth-app:oauth-secret", status: 403}},
		records:      map[string]string{"0": testservers.MigrationSchema, "0.owner": testservers.UserSchema, "0.repositories.0": testservers.MigratedSchema},
	},
	"migrations/start-user": {
		valid: []call{
			{as: "tok-member", body: `{"repositories":[],"org_metadata_only":true}`}, {as: "tok-owner", body: `{"repositories":["acme/widgets"]}`},
			{as: "tok-owner", method: "GET", status: 200}, {as: "tok-owner", body: `{"repositories":["acme/empty"]}`},
		},
		invalid: []call{
			{as: "tok-owner", status: 422, field: "repositories"}, {as: "tok-owner", body: `{"repositories":"acme/widgets"}`, status: 422, field: "repositories"},
			{as: "tok-member", body: `{"repositories":["acme/widgets"]}`, status: 422, field: "repositories[0]"},
		},
		unauthorized: []call{{as: "tok-workflow", body: `{}`, status: 403}},
		records:      map[string]string{"": testservers.MigrationSchema, "owner": testservers.UserSchema, "repositories.0": testservers.MigratedSchema},
	},

	"graphql": {
		valid: []call{
			{as: "tok-owner", body: `{"query":"{ viewer { login } }"}`, status: 200},
			{as: "tok-owner", body: `{"query":"mutation { updateSubscription(input: {subscribableId: \"R_1001\", state: SUBSCRIBED}) { clientMutationId } }"}`, status: 200},
		},
		unauthorized: []call{{body: `{"query":"{ viewer { login } }"}`, status: 401}},
	},
	"app-manifests/convert": {valid: []call{{status: 201}, {as: "tok-owner", target: "/app-manifests/def/conversions", status: 201}}},

	"unknown": {
		invalid: []call{
			{target: "/nowhere", status: 404}, {as: "wrong-token", target: "/user", status: 401},
			{as: "tok-owner", method: "PATCH", target: "/repos/acme/widgets", body: "{}", status: 404},
		},
		valid: []call{{method: "OPTIONS", target: "/gitignore/templates", status: 204}},
	},
}

const configurations = "/orgs/acme/code-security/configurations"

// onRepositories calls a path on each kind of repository, with and without access. The
// arguments are the statuses for the repositories monolith and empty.
func onRepositories(path string, monolith, empty int) visits {
	return visits{
		valid: []call{
			{target: "/repos/acme/widgets" + path, status: 200}, {as: "tok-member", target: "/repos/acme/secret" + path, status: 200},
			{target: "/repos/acme/empty" + path, status: empty}, {target: "/repos/acme/monolith" + path, status: monolith},
			{as: "oauth-app:oauth-secret", target: "/repos/acme/widgets" + path, status: 200},
		},
		invalid:      []call{{as: "tok-workflow", target: "/repos/none/none" + path, status: 404}},
		unauthorized: []call{{as: "tok-outsider", target: "/repos/acme/secret" + path, status: 404}, {as: "tok-public", target: "/repos/acme/secret" + path, status: 404}},
	}
}

// onRoles calls a path on an organization with roles, on an organization without roles, and on
// an unknown organization. A caller without access gets the status refusal.
func onRoles(path string, refusal int) visits {
	roles := "/organization-roles" + path
	return visits{
		valid:        []call{{as: "tok-app", target: "/orgs/Acme" + roles}, {as: "tok-owner", target: "/organizations/4" + roles}, {as: "tok-owner", target: "/orgs/acme" + roles}},
		invalid:      []call{{as: "tok-owner", target: "/orgs/acme-labs" + roles, status: 422}, {as: "tok-owner", target: "/orgs/none" + roles, status: 404}},
		unauthorized: []call{{as: "tok-outsider", target: "/orgs/acme" + roles, status: refusal}, {as: "tok-public", target: "/orgs/acme" + roles, status: 403}},
	}
}

func (v visits) with(records map[string]string) visits {
	v.records = records
	return v
}

func (v visits) and(valid ...call) visits {
	v.valid = append(v.valid, valid...)
	return v
}

func (v visits) but(invalid ...call) visits {
	v.invalid = append(v.invalid, invalid...)
	return v
}
