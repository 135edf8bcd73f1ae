package service

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The kinds of webhook, by what one is created on (Document B section 6.1).
const (
	onRepository   = "repository"
	onOrganization = "organization"
	onApp          = "app"
)

// eventKind is a row of the documents' tables of events.
type eventKind struct {
	// available are the kinds of webhook that may subscribe (section 6.2).
	available []string
	// members are those of the payload in their order (section 6.3); behind those
	// that are optional stands a question mark.
	members string
	// narrow are the only actions that webhooks of repositories and organizations
	// receive; empty means all.
	narrow []string
	// knobs are the members of POST /_service/events that tell more of it.
	knobs []string
}

var (
	everywhere   = []string{onRepository, onOrganization, onApp}
	organization = []string{onOrganization}
)

// events are the tables of Document B sections 6.2 and 6.3, by the events' names.
var events = map[string]eventKind{
	"branch_protection_configuration": {available: everywhere, members: "action enterprise? installation? organization? repository sender"},
	"branch_protection_rule":          {available: everywhere, members: "action enterprise? installation? organization? repository rule sender"},
	"bypass_request_push_ruleset":     {available: everywhere, members: "action enterprise? installation? organization? repository? exemption_request sender"},
	"bypass_request_secret_scanning":  {available: everywhere, members: "action enterprise? installation? organization? repository? exemption_request sender"},
	"check_run":                       {available: everywhere, members: "action? check_run installation? organization? repository sender", narrow: []string{"created", "completed"}},
	"check_suite":                     {available: everywhere, members: "action check_suite enterprise? installation? organization? repository sender", narrow: []string{"completed"}},
	"code_scanning_alert":             {available: everywhere, members: "action alert commit_oid enterprise? installation? organization? ref repository sender", knobs: []string{"ref"}},
	"commit_comment":                  {available: everywhere, members: "action comment enterprise? installation? organization? repository sender"},
	"create":                          {available: everywhere, members: "description master_branch pusher_type ref ref_type enterprise? installation? organization? repository sender", knobs: []string{"ref", "at_once"}},
	"custom_property":                 {available: []string{onOrganization, onApp}, members: "action definition enterprise? installation? organization? sender?"},
	"project":                         {available: everywhere, members: "action enterprise? installation? organization? project repository? sender"},
	"project_column":                  {available: everywhere, members: "action enterprise? installation? organization? project_column repository? sender?"},
	"projects_v2":                     {available: organization, members: "action installation? organization projects_v2 sender"},
	"projects_v2_item":                {available: organization, members: "action changes installation? organization projects_v2_item sender"},
	"projects_v2_status_update":       {available: organization, members: "action installation? organization projects_v2_status_update sender"},
	"public":                          {available: everywhere, members: "enterprise? installation? organization? repository sender"},
	"pull_request":                    {available: everywhere, members: "action assignee number pull_request enterprise? installation? organization? repository sender"},
	"pull_request_review_comment":     {available: everywhere, members: "action comment pull_request enterprise? installation? organization? repository sender"},
	"pull_request_review":             {available: everywhere, members: "action pull_request review enterprise? installation? organization? repository sender"},
	"pull_request_review_thread":      {available: everywhere, members: "action pull_request thread enterprise? installation? organization? repository sender?"},
	"push": {available: everywhere, members: "after base_ref before commits compare created deleted forced head_commit pusher ref enterprise? installation? organization? repository sender?",
		knobs: []string{"ref", "at_once", "commits", "forced", "created", "deleted"}},
	"registry_package":    {available: everywhere, members: "action registry_package enterprise? installation? organization? repository? sender"},
	"release":             {available: everywhere, members: "action release enterprise? installation? organization? repository sender"},
	"repository_advisory": {available: everywhere, members: "action enterprise? installation? organization? repository"},
}

// has reports whether payloads have a member, and whether they must.
func (k eventKind) has(member string) (listed, required bool) {
	all := strings.Fields(k.members)
	required = slices.Contains(all, member)
	return required || slices.Contains(all, member+"?"), required
}

// cause is the body of POST /_service/events: what is to happen.
type cause struct {
	Event      string `json:"event"`
	Action     string `json:"action"`
	Repository string `json:"repository"` // "owner/name"
	// Organization is needed only where no repository is named.
	Organization string `json:"organization"`
	// Sender is the login of a user; the organization's first owner unless given.
	Sender string `json:"sender"`
	// Ref is a full one; the default branch's unless given.
	Ref string `json:"ref"`
	// Commits is how many are pushed; 1 to a branch, else 0, unless given.
	Commits *int `json:"commits"`
	Forced  bool `json:"forced"`
	Created bool `json:"created"`
	Deleted bool `json:"deleted"`
	// AtOnce is how many branches or tags were pushed or created together with
	// this one, itself counted; 1 unless given. The event is of this one alone.
	AtOnce *int `json:"at_once"`
}

// happening is an event with what it is about.
type happening struct {
	name, action string
	repository   *repository // nil where it is about none
	organization *account    // nil where a user owns the repository
	sender       *account
	ref          string
	push         *pushed // of a push
	at           time.Time
	serial       int // numbers what the state does not hold
	// req is the request that URLs are made for; its caller is the sender.
	req *request
	// heard are the webhooks that hear of it, payloads what their kinds are told.
	heard    []*hook
	payloads map[string]object
}

// postEvent makes an event happen, in the state where the state knows it, and
// tells the deliveries that follow.
func (s *Service) postEvent(w http.ResponseWriter, r *http.Request) {
	var c cause
	err := readStrictly(w, r, &c)
	if err == nil {
		var caused object
		if caused, err = s.cause(r, c); err == nil {
			writeJSON(w, http.StatusAccepted, caused)
		}
	}
	if err != nil {
		badRequest(w, err)
	}
}

// cause makes an event happen and tells of it, one after the other, so that
// deliveries come in the order of what happened. Where it returns an error nothing
// has happened.
func (s *Service) cause(r *http.Request, c cause) (object, error) {
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	h, err := s.happen(r, c)
	if err != nil {
		return nil, err
	}
	if why := h.withheld(c); why != "" {
		return object{{"deliveries", []string{}}, {"withheld", why}}, nil
	}
	if len(h.heard) == 0 {
		return object{{"deliveries", []string{}}, {"withheld", "no webhook hears of it"}}, nil
	}
	return object{{"deliveries", s.emit(h)}, {"withheld", nil}}, nil
}

// happen makes an event happen in the state, and finds who hears of it.
func (s *Service) happen(r *http.Request, c cause) (*happening, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.understandCause(r, c)
	if err != nil {
		return nil, err
	}
	switch h.name {
	case "push":
		err = s.push(h, c)
	case "public":
		err = h.repository.publish()
	case "create":
		err = h.repository.mayCreate(c.Ref)
	}
	if err != nil {
		return nil, err
	}
	s.lastEvent = h.serial
	for _, k := range s.hooks {
		if k.hears(h) {
			h.heard = append(h.heard, k)
			if h.payloads[k.kind] == nil {
				h.payloads[k.kind] = s.payload(h, k.kind)
			}
		}
	}
	return h, nil
}

// understandCause finds what a cause names. Its errors name the member.
func (s *Service) understandCause(r *http.Request, c cause) (*happening, error) {
	kind, known := events[c.Event]
	if !known {
		return nil, fmt.Errorf("event: %q: must be one of %s", c.Event, strings.Join(slices.Sorted(maps.Keys(events)), ", "))
	}
	if err := kind.takes(c); err != nil {
		return nil, err
	}
	h := &happening{name: c.Event, action: c.Action, at: time.Now().UTC(), serial: s.lastEvent + 1, payloads: map[string]object{}}
	if err := s.world.locate(h, kind, c); err != nil {
		return nil, err
	}
	h.sender = s.world.accounts[strings.ToLower(c.Sender)]
	switch {
	case c.Sender == "":
		h.sender = h.firstOwner()
	case h.sender == nil || h.sender.members != nil:
		return nil, fmt.Errorf("sender: %q is no user", c.Sender)
	}
	if h.repository != nil {
		h.ref = cmp.Or(c.Ref, h.repository.mainRef())
	}
	h.req = &request{Request: r, base: baseURL(r), caller: caller{login: h.sender.login}}
	return h, nil
}

var (
	actionForm = regexp.MustCompile(`^[a-z_]+$`)
	refForm    = regexp.MustCompile(`^refs/(heads|tags)/[^\s~^:?*\[\\/][^\s~^:?*\[\\]*$`)
)

// takes refuses what the event does not have, and what is no value.
func (k eventKind) takes(c cause) error {
	for _, knob := range []struct {
		name  string
		given bool
	}{{"ref", c.Ref != ""}, {"commits", c.Commits != nil}, {"forced", c.Forced}, {"created", c.Created}, {"deleted", c.Deleted}, {"at_once", c.AtOnce != nil}} {
		if knob.given && !slices.Contains(k.knobs, knob.name) {
			return fmt.Errorf("%s: %s has none", knob.name, c.Event)
		}
	}
	listed, required := k.has("action")
	switch {
	case c.Action != "" && !listed:
		return fmt.Errorf("action: %s has none", c.Event)
	case c.Action == "" && required:
		return fmt.Errorf("action: needed: %s has one", c.Event)
	case c.Action != "" && !actionForm.MatchString(c.Action):
		return fmt.Errorf("action: %q: must be small letters and underscores", c.Action)
	case c.Ref != "" && !refForm.MatchString(c.Ref):
		return fmt.Errorf("ref: %q: must be refs/heads/NAME or refs/tags/NAME", c.Ref)
	case c.AtOnce != nil && *c.AtOnce < 1:
		return fmt.Errorf("at_once: %d: must be 1 or more", *c.AtOnce)
	}
	return nil
}

// locate finds the repository and the organization.
func (w *world) locate(h *happening, kind eventKind, c cause) error {
	listed, required := kind.has("repository")
	switch h.repository = w.repositoryNamed(c.Repository); {
	case c.Repository != "" && !listed:
		return fmt.Errorf("repository: %s has none", c.Event)
	case c.Repository == "" && required:
		return fmt.Errorf("repository: needed: %s is about one", c.Event)
	case c.Repository != "" && h.repository == nil:
		return fmt.Errorf("repository: %q does not exist", c.Repository)
	}
	switch h.organization = w.organizationNamed(c.Organization); {
	case c.Organization != "" && h.organization == nil:
		return fmt.Errorf("organization: %q does not exist", c.Organization)
	case h.repository == nil && h.organization == nil:
		return errors.New("organization: needed: no repository is named")
	case h.repository == nil:
		return nil
	case h.organization != nil && h.organization != h.repository.owner:
		return fmt.Errorf("organization: %q does not own %s", c.Organization, h.repository.fullName())
	}
	h.organization = w.organizationNamed(h.repository.owner.login)
	return nil
}

// repositoryNamed is the repository "owner/name", nil where there is none.
func (w *world) repositoryNamed(fullName string) *repository {
	for _, r := range w.repositories {
		if strings.EqualFold(r.fullName(), fullName) {
			return r
		}
	}
	return nil
}

// organizationNamed is the organization of that login, nil where there is none.
func (w *world) organizationNamed(login string) *account {
	if a := w.accounts[strings.ToLower(login)]; a != nil && a.members != nil {
		return a
	}
	return nil
}

// firstOwner is who did it where nobody is named.
func (h *happening) firstOwner() *account {
	if h.organization == nil {
		return h.repository.owner
	}
	for _, login := range sortedMembers(h.organization) {
		if m := h.organization.members[login]; m.admin {
			return m.user
		}
	}
	panic("an organization without an owner: " + h.organization.login) // the seed's have one
}

// publish makes a private repository public.
func (r *repository) publish() error {
	if !r.private {
		return fmt.Errorf("repository: %s is public already", r.fullName())
	}
	r.private = false
	return nil
}

// mayCreate says why a ref cannot be created. Of refs the state knows the default
// branch only, so nothing else changes.
func (r *repository) mayCreate(ref string) error {
	switch ref {
	case "":
		return errors.New("ref: needed: the branch or tag that is created")
	case r.mainRef():
		return fmt.Errorf("ref: %q is the default branch: its first push creates it", ref)
	}
	return nil
}

// withheld is why an event is not told to anybody; empty where it is (section 6.2).
func (h *happening) withheld(c cause) string {
	if c.AtOnce == nil {
		return ""
	}
	switch tag := strings.HasPrefix(h.ref, "refs/tags/"); {
	case tag && *c.AtOnce > 3:
		return "more than three tags at once"
	case !tag && h.name == "push" && *c.AtOnce > 5000:
		return "more than 5,000 branches at once"
	}
	return ""
}
