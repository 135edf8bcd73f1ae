package service

import (
	"cmp"
	"net/http"
	"net/mail"
	"slices"
	"strings"
	"time"
)

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

// invitableRoles lists the roles that a new invitation may have, in addition to reinstate (Document A section 4.3).
// This API cannot invite hiring managers.
var invitableRoles = []string{"admin", "direct_member", "billing_manager"}

const invitationResource = "OrganizationInvitation"

// invite adds an invitation to an organization and assigns its ID.
func (w *world) invite(org *account, i *invitation) {
	w.invitations++
	i.id = w.invitations
	org.invitations = append(org.invitations, i)
}

// invitationObject returns the record of Document A section 2.4 that a create request responds with.
func invitationObject(req *request, i *invitation) object {
	var login any
	if i.user != nil {
		login = i.user.login
	}
	return object{
		{"id", i.id}, {"login", login}, {"node_id", nodeID("Invitation", i.id)}, {"email", i.email}, {"role", i.role},
		{"created_at", timestamp(i.created)}, {"inviter", userObject(req, i.inviter)}, {"team_count", len(i.teams)},
		{"invitation_teams_url", req.base + "/organizations/" + itoa(req.org.id) + "/invitations/" + itoa(i.id) + "/teams"},
		{"invitation_source", i.source},
	}
}

// invitationListObject returns the record in the form of the lists. It has the members of the failure, which are empty
// for pending invitations.
func invitationListObject(req *request, i *invitation) object {
	failed := ""
	if !i.pending() {
		failed = timestamp(i.failedAt)
	}
	return append(invitationObject(req, i), object{{"failed_at", failed}, {"failed_reason", i.failedReason}}...)
}

// isFilter reports whether a query parameter selects all objects, or those with one of the values.
func isFilter(filter string, values ...string) bool {
	return filter == "" || filter == "all" || slices.Contains(values, filter)
}

func listInvitations(s *Service, req *request) response {
	role, source := req.query.Get("role"), req.query.Get("invitation_source")
	switch {
	case !isFilter(role, invitationRoles...):
		return invalid(invitationResource, "role")
	case !isFilter(source, invitationSources...):
		return invalid(invitationResource, "invitation_source")
	}
	shown := slices.DeleteFunc(req.org.invitationsByState(true), func(i *invitation) bool { return !isFilter(role, i.role) || !isFilter(source, i.source) })
	return list(req, s.world.byNumber(req.path), shown, func(i *invitation) object { return invitationListObject(req, i) })
}

func listFailedInvitations(s *Service, req *request) response {
	return list(req, s.world.byNumber(req.path), req.org.invitationsByState(false), func(i *invitation) object { return invitationListObject(req, i) })
}

// invitationsByState returns the organization's pending or failed invitations.
func (org *account) invitationsByState(pending bool) []*invitation {
	return slices.DeleteFunc(slices.Clone(org.invitations), func(i *invitation) bool { return i.pending() != pending })
}

func listInvitationTeams(_ *Service, req *request) response {
	return listTeams(req, req.org, "/invitations/"+itoa(req.invitation.id)+"/teams", req.invitation.teams)
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
	body := invitationBody{Role: "direct_member"}
	if problem := s.decode(req.raw, invitationResource, &body); problem != nil {
		return *problem
	}
	i := &invitation{source: "member", inviter: s.world.user(req.caller), created: time.Now()}
	if i.inviter == nil {
		i.inviter = org
	}
	if fieldErr := cmp.Or(i.setInvitee(s.world, org, body), i.setRole(org, body), i.setTeams(org, body)); fieldErr != nil {
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
		if i.user = w.findUser(func(u *account) bool { return u.id == *body.InviteeID }); i.user != nil {
			i.email = i.user.email
		}
	case body.Email != nil:
		field = "email"
		if address, err := mail.ParseAddress(*body.Email); err == nil && address.Address == *body.Email {
			i.email = address.Address
			i.user = w.findUser(func(u *account) bool { return strings.EqualFold(u.email, i.email) })
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

// setRole sets the requested role. The role reinstate restores the role of a former member, and is invalid for all
// other users.
func (i *invitation) setRole(org *account, body invitationBody) *fieldError {
	i.role = body.Role
	if i.role == "reinstate" && i.user != nil && org.formerMembers[i.user.login] != nil {
		i.role = "direct_member"
		if org.formerMembers[i.user.login].admin {
			i.role = "admin"
		}
	}
	if !slices.Contains(invitableRoles, i.role) {
		return invalidAt("role")
	}
	return nil
}

// setTeams sets the teams without duplicates. All teams must be teams of the organization.
func (i *invitation) setTeams(org *account, body invitationBody) *fieldError {
	for n, id := range body.TeamIDs {
		at := slices.IndexFunc(org.teams, func(t *team) bool { return t.id == id })
		if at < 0 {
			return invalidAt("team_ids[" + itoa(n) + "]")
		}
		if t := org.teams[at]; !slices.Contains(i.teams, t) {
			i.teams = append(i.teams, t)
		}
	}
	return nil
}

// findUser returns the user for which matches returns true, or nil. At most one user may match.
func (w *world) findUser(matches func(*account) bool) *account {
	for _, a := range w.accounts {
		if a.members == nil && matches(a) {
			return a
		}
	}
	return nil
}
