package testservers

// These schemas describe the objects in Documents A and B, for tests of the reference service. The schemas are copied
// from the documents, not derived from the tested code. [SchemaDifferences] defines their syntax. A nested object has a
// separate schema.
const (
	// Document A section 2.1.
	UserSchema = `login:string id:int node_id:string avatar_url:string gravatar_id:string url:string html_url:string followers_url:string
		following_url:string gists_url:string starred_url:string subscriptions_url:string organizations_url:string repos_url:string
		events_url:string received_events_url:string type:string site_admin:bool`
	// Document A section 2.2. A single role contains the organization as a summary. A list of roles contains the
	// organization as a user.
	RoleSchema         = `id:int name:string description:string permissions:[]string organization:{} created_at:time updated_at:time`
	OrganizationSchema = `login:string id:int node_id:string url:string repos_url:string events_url:string avatar_url:string description:string
		hooks_url:string issues_url:string members_url:string public_members_url:string`
	// Document A sections 2.4 and 2.5. The response to the creation of an invitation has no
	// members about its failure.
	NewInvitationSchema = `id:int login:string? node_id:string email:string role:string created_at:time inviter:{} team_count:int
		invitation_teams_url:string invitation_source:string`
	InvitationSchema = NewInvitationSchema + ` failed_at:string failed_reason:string`
	TeamSchema       = `id:int node_id:string url:string html_url:string name:string slug:string description:string privacy:string
		notification_setting:string permission:string members_url:string repositories_url:string parent:{}?`

	// Document A section 2.6.
	SubscriptionSchema = `subscribed:bool ignored:bool reason:string? created_at:time url:string repository_url:string`
	// Document A section 2.7.
	RepositorySchema = `id:int node_id:string name:string full_name:string description:string homepage:string language:string? default_branch:string
		visibility:string pushed_at:time created_at:time updated_at:time
		private:bool fork:bool is_template:bool has_issues:bool has_projects:bool has_wiki:bool has_pages:bool has_downloads:bool
		has_discussions:bool archived:bool disabled:bool
		forks_count:int stargazers_count:int watchers_count:int size:int open_issues_count:int topics:[]string owner:{}
		permissions:{} security_and_analysis:{} ` + repositoryURLs
	repositoryURLs = `html_url:string url:string archive_url:string assignees_url:string blobs_url:string branches_url:string collaborators_url:string
		comments_url:string commits_url:string compare_url:string contents_url:string contributors_url:string deployments_url:string
		downloads_url:string events_url:string forks_url:string git_commits_url:string git_refs_url:string git_tags_url:string git_url:string
		issue_comment_url:string issue_events_url:string issues_url:string keys_url:string labels_url:string languages_url:string
		merges_url:string milestones_url:string notifications_url:string pulls_url:string releases_url:string ssh_url:string
		stargazers_url:string statuses_url:string subscribers_url:string subscription_url:string tags_url:string teams_url:string
		trees_url:string clone_url:string mirror_url:string hooks_url:string svn_url:string`
	// Document A section 2.8.
	TagSchema = `node_id:string tag:string sha:string url:string message:string tagger:{} object:{} verification:{}`
	// Document A section 2.10.
	RulesetSchema = `id:int name:string source_type:string source:string enforcement:string node_id:string _links:{} created_at:time updated_at:time`
	// The response to a creation has more members (Document A sections 4.8 and 4.9).
	NewRulesetSchema = RulesetSchema + ` target:string bypass_actors:[]{} conditions:{} rules:[]{}`

	// Document A section 2.3.
	ConfigurationSchema = `id:int target_type:string name:string description:string advanced_security:string dependency_graph:string
		dependency_graph_autosubmit_action:string dependency_graph_autosubmit_action_options:{} depbot_alerts:string
		depbot_security_updates:string code_scanning_default_setup:string secret_scanning:string secret_scanning_push_protection:string
		secret_scanning_validity_checks:string private_vulnerability_reporting:string enforcement:string url:string html_url:string
		created_at:time updated_at:time`

	// Document B section 2.1. For the repository of a search result, the documents list the owner and the URL members.
	// The other members of FoundRepositorySchema identify the repository.
	SearchSchema          = `total_count:int incomplete_results:bool items:[]{}`
	FoundRepositorySchema = `id:int node_id:string name:string full_name:string private:bool description:string fork:bool owner:{} ` + repositoryURLs
	// Document B section 2.5: the feeds without authentication, with a token, and with basic
	// authentication.
	PublicFeedsSchema = `timeline_url:string user_url:string security_advisories_url:string _links:{}`
	UserFeedsSchema   = PublicFeedsSchema + ` current_user_public_url:string`
	FeedsSchema       = UserFeedsSchema + ` current_user_url:string current_user_actor_url:string current_user_organization_url:string
		current_user_organization_urls:[]string`
	FeedLinksSchema = `timeline:{} user:{} current_user_public:{} current_user:{} current_user_actor:{} current_user_organization:{}
		current_user_organizations:[]{} security_advisories:{}`
	// Document B section 2.6.
	RateLimitSchema = `limit:int used:int remaining:int reset:int`

	// Document B section 2.7. Import migrations have no list of repositories.
	ImportSchema = `id:int node_id:string owner:{} guid:string state:string lock_repositories:bool exclude_attachments:bool exclude_releases:bool
		exclude_owner_projects:bool url:string created_at:time updated_at:time`
	MigrationSchema = ImportSchema + ` repositories:[]{}`
	MigratedSchema  = RepositorySchema + ` allow_rebase_merge:bool allow_squash_merge:bool allow_auto_merge:bool delete_branch_on_merge:bool
		allow_merge_commit:bool template_repository temp_clone_token:string subscribers_count:int network_count:int forks:int
		open_issues:int watchers:int license:{}`
	LicenseSchema = `key:string name:string url:string spdx_id:string node_id:string html_url:string`
)
