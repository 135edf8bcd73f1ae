package service

import (
	"cmp"
	"fmt"
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
func invitationObject(req *request, org *account, i *invitation) object {
	var login any
	if i.user != nil {
		login = i.user.login
	}
	return object{
		{"id", i.id}, {"login", login}, {"node_id", nodeID("Invitation", i.id)}, {"email", i.email}, {"role", i.role},
		{"created_at", timestamp(i.created)}, {"inviter", userObject(req, i.inviter)}, {"team_count", len(i.teams)},
		{"invitation_teams_url", req.base + "/organizations/" + itoa(org.id) + "/invitations/" + itoa(i.id) + "/teams"},
		{"invitation_source", i.source},
	}
}

// invitationListObject returns the record in the form of the lists. It has the members of the failure, which are empty
// for pending invitations.
func invitationListObject(req *request, org *account, i *invitation) object {
	failed := ""
	if !i.pending() {
		failed = timestamp(i.failedAt)
	}
	return append(invitationObject(req, org, i), object{{"failed_at", failed}, {"failed_reason", i.failedReason}}...)
}

// invitationFilters lists the query parameters of the list of pending invitations. The default of each parameter is all
// (Document A section 4.3).
var invitationFilters = []struct {
	name   string
	values []string
	of     func(*invitation) string
}{
	{"role", invitationRoles, func(i *invitation) string { return i.role }},
	{"invitation_source", invitationSources, func(i *invitation) string { return i.source }},
}

func listInvitations(s *Service, req *request) response {
	org := req.org
	shown := org.invitationsByState(true)
	for _, f := range invitationFilters {
		switch value := req.query.Get(f.name); {
		case value == "" || value == "all":
		case !slices.Contains(f.values, value):
			return invalid(invitationResource, f.name)
		default:
			shown = slices.DeleteFunc(shown, func(i *invitation) bool { return f.of(i) != value })
		}
	}
	return list(req, "/organizations/"+itoa(org.id)+"/invitations", shown, func(i *invitation) object { return invitationListObject(req, org, i) })
}

func listFailedInvitations(s *Service, req *request) response {
	org := req.org
	path := "/organizations/" + itoa(org.id) + "/failed_invitations"
	return list(req, path, org.invitationsByState(false), func(i *invitation) object { return invitationListObject(req, org, i) })
}

// invitationsByState returns the organization's pending or failed invitations.
func (org *account) invitationsByState(pending bool) []*invitation {
	var all []*invitation
	for _, i := range org.invitations {
		if i.pending() == pending {
			all = append(all, i)
		}
	}
	return all
}

// invitation returns the organization and the invitation that a request names.
func (s *Service) invitation(req *request) (*account, *invitation, *response) {
	org := req.org
	at := slices.IndexFunc(org.invitations, func(i *invitation) bool { return itoa(i.id) == req.params["invitation_id"] })
	if at < 0 {
		return nil, nil, refuse(http.StatusNotFound, notFoundText)
	}
	return org, org.invitations[at], nil
}

func listInvitationTeams(s *Service, req *request) response {
	org, i, problem := s.invitation(req)
	if problem != nil {
		return *problem
	}
	return listTeams(req, org, "/invitations/"+itoa(i.id)+"/teams", i.teams)
}

// cancelInvitation removes a pending invitation. Failed invitations cannot be removed.
func cancelInvitation(s *Service, req *request) response {
	org, i, problem := s.invitation(req)
	if problem != nil {
		return *problem
	}
	if !i.pending() {
		return invalid(invitationResource, "invitation_id")
	}
	org.invitations = slices.DeleteFunc(org.invitations, func(other *invitation) bool { return other == i })
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
		return fail(http.StatusUnprocessableEntity, "Validation Failed", *fieldErr)
	}
	s.world.invite(org, i)
	location := req.base + "/orgs/" + org.login + "/invitations/" + itoa(i.id)
	return response{status: http.StatusCreated, body: invitationObject(req, org, i), location: location}
}

// setInvitee sets the user and the address of an invitation. The user ID takes precedence over the address. Members and
// users with a pending invitation are refused.
func (i *invitation) setInvitee(w *world, org *account, body invitationBody) *problemField {
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
		return &problemField{invitationResource, field, "missing_field"}
	}
	switch {
	case i.email == "":
		return &problemField{invitationResource, field, "invalid"}
	case i.user != nil && org.members[i.user.login] != nil,
		slices.ContainsFunc(org.invitationsByState(true), func(other *invitation) bool { return strings.EqualFold(other.email, i.email) }):
		return &problemField{invitationResource, field, "already_exists"}
	}
	return nil
}

// setRole sets the requested role. The role reinstate restores the role of a former member, and is invalid for all
// other users.
func (i *invitation) setRole(org *account, body invitationBody) *problemField {
	i.role = body.Role
	if i.role == "reinstate" && i.user != nil && org.formerMembers[i.user.login] != nil {
		i.role = "direct_member"
		if org.formerMembers[i.user.login].admin {
			i.role = "admin"
		}
	}
	if !slices.Contains(invitableRoles, i.role) {
		return &problemField{invitationResource, "role", "invalid"}
	}
	return nil
}

// setTeams sets the teams without duplicates. All teams must be teams of the organization.
func (i *invitation) setTeams(org *account, body invitationBody) *problemField {
	for n, id := range body.TeamIDs {
		at := slices.IndexFunc(org.teams, func(t *team) bool { return t.id == id })
		if at < 0 {
			return &problemField{invitationResource, fmt.Sprintf("team_ids[%d]", n), "invalid"}
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
