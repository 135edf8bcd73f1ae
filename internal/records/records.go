// Package records is the members of the records that the documents list, by their
// sections, for tests of the reference service.
//
// Invariants: a record is its members' names as the documents spell them, with blanks
// between them; nothing is derived from the code that is tested. It is not for
// production code.
package records

// The records that stand in more than one answer.
const (
	// Document A section 2.1.
	User = `login id node_id avatar_url gravatar_id url html_url followers_url following_url gists_url starred_url
		subscriptions_url organizations_url repos_url events_url received_events_url type site_admin`
	// Document A sections 2.2, 2.4 and 2.5. What answers creating an invitation
	// does not tell of its failure.
	Role          = `id name description permissions organization created_at updated_at`
	NewInvitation = `id login node_id email role created_at inviter team_count invitation_teams_url invitation_source`
	Invitation    = NewInvitation + ` failed_at failed_reason`
	Team          = `id node_id url html_url name slug description privacy notification_setting permission members_url repositories_url parent`

	// Document A section 2.6.
	Subscription = `subscribed ignored reason created_at url repository_url`
	// Document A section 2.7.
	Repository = `id node_id name full_name description homepage language default_branch visibility pushed_at created_at updated_at
		private fork is_template has_issues has_projects has_wiki has_pages has_downloads has_discussions archived disabled
		forks_count stargazers_count watchers_count size open_issues_count topics owner
		permissions security_and_analysis ` + RepositoryURLs
	RepositoryURLs = `html_url url archive_url assignees_url blobs_url branches_url collaborators_url comments_url commits_url compare_url contents_url
		contributors_url deployments_url downloads_url events_url forks_url git_commits_url git_refs_url git_tags_url git_url issue_comment_url
		issue_events_url issues_url keys_url labels_url languages_url merges_url milestones_url notifications_url pulls_url releases_url ssh_url
		stargazers_url statuses_url subscribers_url subscription_url tags_url teams_url trees_url clone_url mirror_url hooks_url svn_url`
	// Document A section 2.10.
	Ruleset = `id name source_type source enforcement node_id _links created_at updated_at`
	// What a new one has beside: sections 4.8 and 4.9.
	NewRuleset = Ruleset + ` target bypass_actors conditions rules`
	// Document B sections 2.1 and 2.6. Of the repository of a search result it names
	// the owner and the URL fields; the others are those that tell which one it is.
	Search          = `total_count incomplete_results items`
	FoundRepository = `id node_id name full_name private description fork owner ` + RepositoryURLs
	RateLimit       = `limit used remaining reset`

	// Document A section 2.3.
	Configuration = `id target_type name description advanced_security dependency_graph dependency_graph_autosubmit_action
		dependency_graph_autosubmit_action_options depbot_alerts depbot_security_updates code_scanning_default_setup secret_scanning
		secret_scanning_push_protection secret_scanning_validity_checks private_vulnerability_reporting enforcement url html_url created_at updated_at`

	// Document B section 2.7.
	Migration = `id node_id owner guid state lock_repositories exclude_attachments exclude_releases exclude_owner_projects repositories
		url created_at updated_at`
	Migrated = Repository + ` allow_rebase_merge allow_squash_merge allow_auto_merge delete_branch_on_merge allow_merge_commit
		template_repository temp_clone_token subscribers_count network_count forks open_issues watchers license`
	License = `key name url spdx_id node_id html_url`
)
