package service

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// sortedMembers returns the sorted logins of an organization's members.
func sortedMembers(org *account) []string { return slices.Sorted(maps.Keys(org.members)) }

// canSeeConcealedMembers reports whether the caller may see concealed members. The caller must be a member or an
// installation of the organization, and its token must allow the read.
func canSeeConcealedMembers(org *account, c caller) bool {
	return (org.members[c.login] != nil || c.covers(org, nil)) && c.hasPermission("Members (organization): read") && c.hasScope("read:org")
}

// listMembers lists members. Only members of the organization see concealed members (Document A section 4.3).
func listMembers(s *Service, req *request) response {
	org := req.org
	filter, role := req.query.Get("filter"), req.query.Get("role")
	if !isFilter(filter, "2fa_disabled") {
		return invalid("OrganizationMember", "filter")
	}
	if !isFilter(role, "admin", "member") {
		return invalid("OrganizationMember", "role")
	}
	caller := org.members[req.caller.login]
	if filter == "2fa_disabled" && (caller == nil || !caller.admin) {
		return fail(http.StatusUnprocessableEntity, "Only owners can use this filter", problemField{"OrganizationMember", "filter", "invalid"})
	}
	seesAll := canSeeConcealedMembers(org, req.caller)
	return listSelected(func(_ *request, m *membership) bool {
		hasRole := role != "admin" && role != "member" || m.admin == (role == "admin")
		return (m.public || seesAll) && hasRole && (filter != "2fa_disabled" || !m.twoFactor)
	})(s, req)
}

// listSelected returns a handler that lists the selected members of the organization.
func listSelected(selects func(*request, *membership) bool) handler {
	return list(func(r *request) []string {
		return slices.DeleteFunc(sortedMembers(r.org), func(login string) bool { return !selects(r, r.org.members[login]) })
	}, func(r *request, login string) object { return userObject(r, r.org.members[login].user) })
}

// checkMember reports whether a user is a member, or a public one. It redirects callers outside the organization to the
// check of public members (Document A section 4.3).
func checkMember(_ *Service, req *request) response {
	org, login, public := req.org, req.params["username"], lastOf(parentOf(req.path)) == "public_members"
	if !public && !canSeeConcealedMembers(org, req.caller) {
		return response{status: http.StatusFound, location: req.base + "/orgs/" + org.login + "/public_members/" + url.PathEscape(login)}
	}
	m := org.members[login]
	return check(m != nil && (!public || m.public))
}

// join makes a user a member of the organization in the path.
func (s *Service) join(r *request, login string) *membership {
	m := r.org.members[login]
	if m == nil {
		m = &membership{user: s.world.accounts[login], twoFactor: true}
		r.org.members[login] = m
	}
	return m
}

// setMembership handles PUT of a membership. The first owner stays one.
func setMembership(s *Service, r *request) response {
	m := s.join(r, keyOf(r.path))
	m.admin = r.text("role") == "admin" || m.user == s.world.ownerOf(r.org)
	return respond(membershipObject(r, r.org, m))
}

// removeMember removes a member from the organization and from its teams.
func removeMember(s *Service, r *request) response {
	login := keyOf(r.path)
	if m := r.org.members[login]; m != nil && m.user != s.world.ownerOf(r.org) {
		delete(r.org.members, login)
		for _, t := range r.org.teams {
			delete(t.members, login)
		}
	}
	return response{status: http.StatusNoContent}
}

// ownerOf returns the first owner of an organization, who cannot leave it.
func (w *world) ownerOf(org *account) *account {
	owner := first(sortedMembers(org), func(login string) bool { return org.members[login].admin })
	return w.accounts[owner]
}

func getMembership(s *Service, r *request) response {
	login := keyOf(r.path)
	if r.op.view == "/user/memberships/orgs/{}" {
		login = r.caller.login
		r.org = s.world.accountNamed(true, keyOf(r.path))
	}
	m := r.org.members[login]
	if m == nil {
		return notFound()
	}
	return respond(membershipObject(r, r.org, m))
}

func membershipObject(r *request, org *account, m *membership) object {
	role, url := map[bool]string{true: "admin", false: "member"}[m.admin], r.base+"/orgs/"+org.login
	return object{
		{"url", url + "/memberships/" + m.user.login}, {"state", "active"}, {"role", role}, {"organization_url", url},
		{"user", userObject(r, m.user)}, {"organization", organizationSummary(r, org)},
	}
}

// publicizeMember shows or conceals a membership.
func publicizeMember(_ *Service, r *request) response {
	m := r.org.members[keyOf(r.path)]
	if m == nil {
		return fail(http.StatusForbidden, "Only members can be shown")
	}
	m.public = r.Method == http.MethodPut
	return response{status: http.StatusNoContent}
}

// listOrganizations lists the organizations of the caller, their memberships, or the public ones of a user.
func listOrganizations(s *Service, r *request) response {
	login := r.caller.login
	if r.op.view == "/users/{}/orgs" {
		login = keyOf(parentOf(r.path))
	}
	var shown []object
	for _, org := range s.world.byID {
		switch m := org.members[login]; {
		case m == nil, !m.public && login != r.caller.login:
		case r.op.view == "/user/memberships/orgs":
			shown = append(shown, membershipObject(r, org, m))
		default:
			shown = append(shown, organizationSummary(r, org))
		}
	}
	return listOf(shown, func(o object) object { return o })
}

// team is a team of an organization (Document A section 2.5).
type team struct {
	id          int
	name        string
	slug        string // unique within the organization
	description string
	privacy     string          // secret or closed; only closed teams may be nested
	parent      *team           // nil for a top-level team
	members     map[string]bool // direct members, by login
}

// hasMember reports whether a user is a member of the team or of a team nested in it.
func (t *team) hasMember(org *account, login string) bool {
	return slices.ContainsFunc(org.teams, func(own *team) bool { return own.members[login] && own.isIn(t) })
}

// isIn reports whether a team is another one, or nested in it.
func (t *team) isIn(other *team) bool { return t != nil && (t == other || t.parent.isIn(other)) }

// teamObject returns the JSON object of a team (Document A section 2.5). The object contains the parent teams.
func teamObject(req *request, org *account, t *team) object {
	api := req.base + "/teams/" + itoa(t.id)
	var parent any
	if t.parent != nil {
		parent = teamObject(req, org, t.parent)
	}
	return object{
		{"id", t.id}, {"node_id", nodeID("Team", t.id)}, {"url", api},
		{"html_url", req.base + "/orgs/" + org.login + "/teams/" + t.slug},
		{"name", t.name}, {"slug", t.slug}, {"description", t.description}, {"privacy", t.privacy},
		{"notification_setting", "notifications_enabled"}, {"permission", "pull"},
		{"members_url", api + "/members{/member}"}, {"repositories_url", api + "/repos"}, {"parent", parent},
	}
}

// listTeams lists the teams of the organization, of the invitation or with the role in the path, or the teams directly
// below the team in the path.
func listTeams(_ *Service, r *request) response {
	teams := r.org.teams
	if r.invitation != nil {
		teams = r.invitation.teams
	}
	teams = slices.DeleteFunc(slices.Clone(teams), func(t *team) bool {
		return r.team != nil && t.parent != r.team || r.role != nil && !r.role.assigned[assignedTeam+t.slug]
	})
	return listOf(teams, func(t *team) object { return teamObject(r, r.org, t) })
}

// teamNamed returns the team with a slug, or nil.
func (org *account) teamNamed(slug string) *team {
	return first(org.teams, func(t *team) bool { return t.slug == slug })
}

// teamWithID returns a team and its organization, or nil.
func (w *world) teamWithID(id string) (*account, *team) {
	for _, org := range w.byID {
		for _, t := range org.teams {
			if itoa(t.id) == id {
				return org, t
			}
		}
	}
	return nil, nil
}

// addTeam adds a team to an organization.
func (w *world) addTeam(org *account, name, description, privacy string, parent *team) *team {
	slug := strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == ' ' || r == '&' }), "-")
	w.lastTeam++
	t := &team{id: 200 + w.lastTeam, name: name, slug: slug, description: description, privacy: privacy, parent: parent, members: map[string]bool{}}
	org.teams = append(org.teams, t)
	return t
}

func createTeam(s *Service, r *request) response {
	t := s.world.addTeam(r.org, r.text("name"), r.text("description"), "closed", nil)
	if t.slug == "" || r.org.teamNamed(t.slug) != t {
		r.org.teams = r.org.teams[:len(r.org.teams)-1]
		return fail(http.StatusUnprocessableEntity, "Validation Failed")
	}
	r.team = t
	if login := r.caller.login; login != "" {
		t.members[login] = true
	}
	r.touch(r.path + "/" + escape(t.slug))
	return response{status: http.StatusCreated, body: updateTeam(s, r).body}
}

func updateTeam(s *Service, r *request) response {
	for name, value := range map[string]*string{"name": &r.team.name, "description": &r.team.description, "privacy": &r.team.privacy} {
		if text := r.text(name); text != "" {
			*value = text
		}
	}
	for _, t := range r.org.teams { // a team shows its parents
		r.touch("/orgs/"+r.org.login+"/teams/"+escape(t.slug), "/orgs/"+r.org.login+"/teams/"+escape(t.slug)+"/teams")
	}
	return response{status: r.op.created(), body: teamObject(r, r.org, r.team)}
}

func deleteTeam(_ *Service, r *request) response {
	r.org.teams = slices.DeleteFunc(r.org.teams, func(t *team) bool {
		if t.isIn(r.team) {
			r.touch("/teams/" + itoa(t.id) + "/**")
		}
		return t.isIn(r.team)
	})
	r.touch("/orgs/" + r.org.login + "/teams/**")
	return response{status: http.StatusNoContent}
}

// changeTeamMember adds a member to a team, or removes it. A new member joins the organization, too.
func changeTeamMember(s *Service, r *request) response {
	login := keyOf(r.path)
	delete(r.team.members, login)
	for t := r.team; t != nil; t = t.parent {
		r.touch("/orgs/" + r.org.login + "/teams/" + escape(t.slug) + "/**")
	}
	if r.Method == http.MethodDelete {
		return response{status: http.StatusNoContent}
	}
	r.team.members[login] = true
	s.join(r, login)
	if r.op.lists(http.StatusNoContent) {
		return response{status: http.StatusNoContent}
	}
	return getTeamMember(s, r)
}

// getTeamMember returns the membership of a team, or checks it without a body.
func getTeamMember(_ *Service, r *request) response {
	login := keyOf(r.path)
	if isMember := r.team.hasMember(r.org, login); !isMember || r.op.isCheck() {
		return check(isMember)
	}
	return respond(object{{"url", r.base + r.path}, {"role", "member"}, {"state", "active"}})
}

// role is an organization role (Document A section 2.2).
type role struct {
	id          int
	name        string
	description string
	permissions []string
	created     time.Time
	assigned    map[string]bool // by a prefix and the slug of a team or the login of a user
}

const assignedTeam, assignedUser = "team ", "user "

// hasPermission reports whether a user has a permission through an assigned role. The role may be assigned to the user,
// to a team of the user, or to a parent of that team.
func (org *account) hasPermission(login, permission string) bool {
	return slices.ContainsFunc(org.roles, func(r *role) bool {
		hasRole := func(t *team) bool { return r.assigned[assignedTeam+t.slug] && t.hasMember(org, login) }
		isAssigned := r.assigned[assignedUser+login] || slices.ContainsFunc(org.teams, hasRole)
		return isAssigned && slices.Contains(r.permissions, permission)
	})
}

// roleObject returns the JSON object of a role (Document A section 2.2). Lists contain the organization as an account
// object, and a single role contains its summary.
func roleObject(r *role, organization object) object {
	return object{
		{"id", r.id}, {"name", r.name}, {"description", r.description}, {"permissions", r.permissions},
		{"organization", organization}, {"created_at", timestamp(r.created)}, {"updated_at", timestamp(r.created)},
	}
}

// organizationSummary returns the organization object within a single role.
func organizationSummary(req *request, org *account) object {
	api := req.base + "/orgs/" + org.login
	return object{
		{"login", org.login}, {"id", org.id}, {"node_id", nodeID("Organization", org.id)}, {"url", api},
		{"repos_url", api + "/repos"}, {"events_url", api + "/events"}, {"hooks_url", api + "/hooks"},
		{"issues_url", api + "/issues"}, {"members_url", api + "/members{/member}"},
		{"public_members_url", api + "/public_members{/member}"},
		{"avatar_url", req.base + "/avatars/" + itoa(org.id)}, {"description", org.description},
	}
}

func getRole(_ *Service, req *request) response {
	return response{status: http.StatusOK, modified: req.role.created, body: roleObject(req.role, organizationSummary(req, req.org))}
}

// changeAssignment assigns a role to a team or a member, or removes the role or all roles. Assigning an assigned role and
// removing another one have no effect (Document A section 3).
func changeAssignment(s *Service, req *request) response {
	slug, ofTeam := req.params["team_slug"]
	login := req.params["username"]
	to, exists := assignedUser+login, s.world.accounts[login] != nil && s.world.accounts[login].members == nil
	if ofTeam {
		to, exists = assignedTeam+slug, req.org.teamNamed(slug) != nil
	}
	assigns := req.Method == http.MethodPut
	switch {
	case !exists:
		return notFound()
	case assigns && !ofTeam && req.org.members[login] == nil:
		return fail(http.StatusUnprocessableEntity, "The user is not a member of the organization", problemField{"OrganizationRole", "username", "invalid"})
	case assigns:
		req.role.assigned[to] = true
	case req.role != nil:
		delete(req.role.assigned, to)
	default:
		for _, r := range req.org.roles {
			delete(r.assigned, to)
		}
	}
	return response{status: http.StatusNoContent}
}

// invitation invites a person to an organization (Document A section 2.4). It is pending until it is canceled or its
// delivery fails (section 3).
type invitation struct {
	id      int
	user    *account // nil if no account has the e-mail address
	email   string
	role    string // one of invitationRoles
	source  string // one of invitationSources
	inviter *account
	teams   []*team
	created time.Time
	// failedAt is zero and failedReason is empty while the invitation is pending.
	failedAt     time.Time
	failedReason string
}

func (i *invitation) pending() bool { return i.failedAt.IsZero() }

// These lists contain the values of the members role and invitation_source (Document A section 2.4).
var (
	invitationRoles   = []string{"admin", "direct_member", "billing_manager", "hiring_manager"}
	invitationSources = []string{"member", "scim"}
)

var addressForm = regexp.MustCompile(`^[^\s<>@,;"]+@[^\s<>@,;"]+$`)

const invitationResource = "OrganizationInvitation"

// invite adds an invitation to an organization and assigns its ID.
func (w *world) invite(org *account, i *invitation) {
	w.invitations++
	i.id = w.invitations
	org.invitations = append(org.invitations, i)
}

// invitationObject returns the record of Document A section 2.4. In lists, it has the members of the failure, which are
// empty for pending invitations.
func invitationObject(req *request, i *invitation) object {
	var login any
	if i.user != nil {
		login = i.user.login
	}
	o := object{
		{"id", i.id}, {"login", login}, {"node_id", nodeID("Invitation", i.id)}, {"email", i.email}, {"role", i.role},
		{"created_at", timestamp(i.created)}, {"inviter", userObject(req, i.inviter)}, {"team_count", len(i.teams)},
		{"invitation_teams_url", req.base + "/organizations/" + itoa(req.org.id) + "/invitations/" + itoa(i.id) + "/teams"},
		{"invitation_source", i.source},
	}
	if req.Method == http.MethodPost {
		return o
	}
	failed := ""
	if !i.pending() {
		failed = timestamp(i.failedAt)
	}
	return append(o, object{{"failed_at", failed}, {"failed_reason", i.failedReason}}...)
}

// isFilter reports whether a query parameter selects all objects, or those with one of the values.
func isFilter(filter string, values ...string) bool {
	return filter == "" || filter == "all" || slices.Contains(values, filter)
}

// listInvitations lists the pending or the failed invitations.
func listInvitations(_ *Service, req *request) response {
	role, source := req.query.Get("role"), req.query.Get("invitation_source")
	switch {
	case !isFilter(role, invitationRoles...):
		return invalid(invitationResource, "role")
	case !isFilter(source, invitationSources...):
		return invalid(invitationResource, "invitation_source")
	}
	pending := !strings.HasSuffix(req.path, "/failed_invitations")
	shown := slices.DeleteFunc(req.org.invitationsByState(pending), func(i *invitation) bool {
		return pending && (!isFilter(role, i.role) || !isFilter(source, i.source))
	})
	return listOf(shown, func(i *invitation) object { return invitationObject(req, i) })
}

// invitationsByState returns the organization's pending or failed invitations.
func (org *account) invitationsByState(pending bool) []*invitation {
	return slices.DeleteFunc(slices.Clone(org.invitations), func(i *invitation) bool { return i.pending() != pending })
}

// cancelInvitation removes a pending invitation. Failed invitations cannot be removed.
func cancelInvitation(_ *Service, req *request) response {
	if !req.invitation.pending() {
		return invalid(invitationResource, "invitation_id")
	}
	req.org.invitations = slices.DeleteFunc(req.org.invitations, func(other *invitation) bool { return other == req.invitation })
	return response{status: http.StatusNoContent}
}

// invitationBody is the body that creates an invitation.
type invitationBody struct {
	InviteeID *int    `json:"invitee_id"`
	Email     *string `json:"email"`
	Role      string  `json:"role"`
	TeamIDs   []int   `json:"team_ids"`
}

// createInvitation invites a user or an e-mail address to the organization (Document A section 4.3). If an app sends
// the request, the organization is the inviter.
func createInvitation(s *Service, req *request) response {
	org := req.org
	var body invitationBody
	if problem := readBody(req.raw, invitationResource, &body); problem != nil {
		return *problem
	}
	i := &invitation{role: body.Role, source: "member", inviter: s.world.user(req.caller), created: time.Now()}
	if i.inviter == nil {
		i.inviter = org
	}
	if fieldErr := cmp.Or(i.setInvitee(s.world, org, body), i.setRole(org), i.setTeams(org, body)); fieldErr != nil {
		return *fieldErr.of(invitationResource)
	}
	s.world.invite(org, i)
	location := req.base + "/orgs/" + org.login + "/invitations/" + itoa(i.id)
	return response{status: http.StatusCreated, body: invitationObject(req, i), location: location}
}

// setInvitee sets the user and the address of an invitation. The user ID takes precedence over the address. Members and
// users with a pending invitation are refused.
func (i *invitation) setInvitee(w *world, org *account, body invitationBody) *fieldError {
	field := "invitee_id"
	switch {
	case body.InviteeID != nil:
		if i.user = first(w.users(), func(u *account) bool { return u.id == *body.InviteeID }); i.user != nil {
			i.email = i.user.email
		}
	case body.Email != nil:
		field = "email"
		if addressForm.MatchString(*body.Email) {
			i.email = *body.Email
			i.user = first(w.users(), func(u *account) bool { return strings.EqualFold(u.email, i.email) })
		}
	default:
		return missingAt("invitee_id")
	}
	switch {
	case i.email == "":
		return invalidAt(field)
	case i.user != nil && org.members[i.user.login] != nil,
		slices.ContainsFunc(org.invitationsByState(true), func(other *invitation) bool { return strings.EqualFold(other.email, i.email) }):
		return &fieldError{field, "already_exists"}
	}
	return nil
}

// setRole replaces the role reinstate by the role of a former member. It is invalid for all other users.
func (i *invitation) setRole(org *account) *fieldError {
	if i.role != "reinstate" {
		return nil
	}
	if i.user == nil || org.formerMembers[i.user.login] == nil {
		return invalidAt("role")
	}
	if i.role = "direct_member"; org.formerMembers[i.user.login].admin {
		i.role = "admin"
	}
	return nil
}

// setTeams sets the teams without duplicates. All teams must be teams of the organization.
func (i *invitation) setTeams(org *account, body invitationBody) *fieldError {
	for n, id := range body.TeamIDs {
		t := first(org.teams, func(t *team) bool { return t.id == id })
		if t == nil {
			return invalidAt("team_ids[" + itoa(n) + "]")
		}
		if !slices.Contains(i.teams, t) {
			i.teams = append(i.teams, t)
		}
	}
	return nil
}
