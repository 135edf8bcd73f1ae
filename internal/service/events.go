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
	targets []string
	// members are those of the payload in their order (section 6.3); behind those
	// that are optional stands a question mark.
	payload string
	// narrow are the only actions that webhooks of repositories and organizations
	// receive; empty means all.
	webhookActions []string
	// knobs are the members of POST /_service/events that tell more of it.
	options []string
}

var (
	anyTarget        = []string{onRepository, onOrganization, onApp}
	onlyOrganization = []string{onOrganization}
)

// events are the tables of Document B sections 6.2 and 6.3, by the events' names.
var eventKinds = map[string]eventKind{
	"branch_protection_configuration": {targets: anyTarget, payload: "action enterprise? installation? organization? repository sender"},
	"branch_protection_rule":          {targets: anyTarget, payload: "action enterprise? installation? organization? repository rule sender"},
	"bypass_request_push_ruleset":     {targets: anyTarget, payload: "action enterprise? installation? organization? repository? exemption_request sender"},
	"bypass_request_secret_scanning":  {targets: anyTarget, payload: "action enterprise? installation? organization? repository? exemption_request sender"},
	"check_run":                       {targets: anyTarget, payload: "action? check_run installation? organization? repository sender", webhookActions: []string{"created", "completed"}},
	"check_suite":                     {targets: anyTarget, payload: "action check_suite enterprise? installation? organization? repository sender", webhookActions: []string{"completed"}},
	"code_scanning_alert":             {targets: anyTarget, payload: "action alert commit_oid enterprise? installation? organization? ref repository sender", options: []string{"ref"}},
	"commit_comment":                  {targets: anyTarget, payload: "action comment enterprise? installation? organization? repository sender"},
	"create":                          {targets: anyTarget, payload: "description master_branch pusher_type ref ref_type enterprise? installation? organization? repository sender", options: []string{"ref", "at_once"}},
	"custom_property":                 {targets: []string{onOrganization, onApp}, payload: "action definition enterprise? installation? organization? sender?"},
	"project":                         {targets: anyTarget, payload: "action enterprise? installation? organization? project repository? sender"},
	"project_column":                  {targets: anyTarget, payload: "action enterprise? installation? organization? project_column repository? sender?"},
	"projects_v2":                     {targets: onlyOrganization, payload: "action installation? organization projects_v2 sender"},
	"projects_v2_item":                {targets: onlyOrganization, payload: "action changes installation? organization projects_v2_item sender"},
	"projects_v2_status_update":       {targets: onlyOrganization, payload: "action installation? organization projects_v2_status_update sender"},
	"public":                          {targets: anyTarget, payload: "enterprise? installation? organization? repository sender"},
	"pull_request":                    {targets: anyTarget, payload: "action assignee number pull_request enterprise? installation? organization? repository sender"},
	"pull_request_review_comment":     {targets: anyTarget, payload: "action comment pull_request enterprise? installation? organization? repository sender"},
	"pull_request_review":             {targets: anyTarget, payload: "action pull_request review enterprise? installation? organization? repository sender"},
	"pull_request_review_thread":      {targets: anyTarget, payload: "action pull_request thread enterprise? installation? organization? repository sender?"},
	"push": {targets: anyTarget, payload: "after base_ref before commits compare created deleted forced head_commit pusher ref enterprise? installation? organization? repository sender?",
		options: []string{"ref", "at_once", "commits", "forced", "created", "deleted"}},
	"registry_package":    {targets: anyTarget, payload: "action registry_package enterprise? installation? organization? repository? sender"},
	"release":             {targets: anyTarget, payload: "action release enterprise? installation? organization? repository sender"},
	"repository_advisory": {targets: anyTarget, payload: "action enterprise? installation? organization? repository"},
}

// has reports whether payloads have a member, and whether they must.
func (k eventKind) has(member string) (listed, required bool) {
	all := strings.Fields(k.payload)
	required = slices.Contains(all, member)
	return required || slices.Contains(all, member+"?"), required
}

// cause is the body of POST /_service/events: what is to happen.
type eventBody struct {
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
type event struct {
	name, action string
	repository   *repository // nil where it is about none
	organization *account    // nil where a user owns the repository
	sender       *account
	ref          string
	push         *pushResult // of a push
	at           time.Time
	serial       int // numbers what the state does not hold
	// req is the request that URLs are made for; its caller is the sender.
	req *request
	// heard are the webhooks that hear of it, payloads what their kinds are told.
	subscribers []*hook
	payloads    map[string]object
}

// postEvent makes an event happen, in the state where the state knows it, and
// tells the deliveries that follow.
func (s *Service) postEvent(w http.ResponseWriter, r *http.Request) {
	var body eventBody
	err := readControlJSON(w, r, &body)
	if err == nil {
		var caused object
		if caused, err = s.createEvent(r, body); err == nil {
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
func (s *Service) createEvent(r *http.Request, body eventBody) (object, error) {
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	e, err := s.applyEvent(r, body)
	if err != nil {
		return nil, err
	}
	if why := e.withheldReason(body); why != "" {
		return object{{"deliveries", []string{}}, {"withheld", why}}, nil
	}
	if len(e.subscribers) == 0 {
		return object{{"deliveries", []string{}}, {"withheld", "no webhook hears of it"}}, nil
	}
	return object{{"deliveries", s.deliver(e)}, {"withheld", nil}}, nil
}

// happen makes an event happen in the state, and finds who hears of it.
func (s *Service) applyEvent(r *http.Request, body eventBody) (*event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.resolveEvent(r, body)
	if err != nil {
		return nil, err
	}
	switch e.name {
	case "push":
		err = s.push(e, body)
	case "public":
		err = e.repository.publish()
	case "create":
		err = e.repository.checkCreate(body.Ref)
	}
	if err != nil {
		return nil, err
	}
	s.lastEvent = e.serial
	for _, k := range s.hooks {
		if k.receives(e) {
			e.subscribers = append(e.subscribers, k)
			if e.payloads[k.kind] == nil {
				e.payloads[k.kind] = s.payload(e, k.kind)
			}
		}
	}
	return e, nil
}

// understandCause finds what a cause names. Its errors name the member.
func (s *Service) resolveEvent(r *http.Request, body eventBody) (*event, error) {
	kind, known := eventKinds[body.Event]
	if !known {
		return nil, fmt.Errorf("event: %q: must be one of %s", body.Event, strings.Join(slices.Sorted(maps.Keys(eventKinds)), ", "))
	}
	if err := kind.validate(body); err != nil {
		return nil, err
	}
	e := &event{name: body.Event, action: body.Action, at: time.Now().UTC(), serial: s.lastEvent + 1, payloads: map[string]object{}}
	if err := s.world.locate(e, kind, body); err != nil {
		return nil, err
	}
	e.sender = s.world.accounts[strings.ToLower(body.Sender)]
	switch {
	case body.Sender == "":
		e.sender = e.defaultSender()
	case e.sender == nil || e.sender.members != nil:
		return nil, fmt.Errorf("sender: %q is no user", body.Sender)
	}
	if e.repository != nil {
		e.ref = cmp.Or(body.Ref, e.repository.mainRef())
	}
	e.req = &request{Request: r, base: baseURL(r), caller: caller{login: e.sender.login}}
	return e, nil
}

var (
	actionForm = regexp.MustCompile(`^[a-z_]+$`)
	refForm    = regexp.MustCompile(`^refs/(heads|tags)/[^\s~^:?*\[\\/][^\s~^:?*\[\\]*$`)
)

// takes refuses what the event does not have, and what is no value.
func (k eventKind) validate(body eventBody) error {
	for _, option := range []struct {
		name  string
		given bool
	}{{"ref", body.Ref != ""}, {"commits", body.Commits != nil}, {"forced", body.Forced}, {"created", body.Created}, {"deleted", body.Deleted}, {"at_once", body.AtOnce != nil}} {
		if option.given && !slices.Contains(k.options, option.name) {
			return fmt.Errorf("%s: %s has none", option.name, body.Event)
		}
	}
	listed, required := k.has("action")
	switch {
	case body.Action != "" && !listed:
		return fmt.Errorf("action: %s has none", body.Event)
	case body.Action == "" && required:
		return fmt.Errorf("action: needed: %s has one", body.Event)
	case body.Action != "" && !actionForm.MatchString(body.Action):
		return fmt.Errorf("action: %q: must be small letters and underscores", body.Action)
	case body.Ref != "" && !refForm.MatchString(body.Ref):
		return fmt.Errorf("ref: %q: must be refs/heads/NAME or refs/tags/NAME", body.Ref)
	case body.AtOnce != nil && *body.AtOnce < 1:
		return fmt.Errorf("at_once: %d: must be 1 or more", *body.AtOnce)
	}
	return nil
}

// locate finds the repository and the organization.
func (w *world) locate(e *event, kind eventKind, body eventBody) error {
	listed, required := kind.has("repository")
	switch e.repository = w.repositoryNamed(body.Repository); {
	case body.Repository != "" && !listed:
		return fmt.Errorf("repository: %s has none", body.Event)
	case body.Repository == "" && required:
		return fmt.Errorf("repository: needed: %s is about one", body.Event)
	case body.Repository != "" && e.repository == nil:
		return fmt.Errorf("repository: %q does not exist", body.Repository)
	}
	switch e.organization = w.organizationNamed(body.Organization); {
	case body.Organization != "" && e.organization == nil:
		return fmt.Errorf("organization: %q does not exist", body.Organization)
	case e.repository == nil && e.organization == nil:
		return errors.New("organization: needed: no repository is named")
	case e.repository == nil:
		return nil
	case e.organization != nil && e.organization != e.repository.owner:
		return fmt.Errorf("organization: %q does not own %s", body.Organization, e.repository.fullName())
	}
	e.organization = w.organizationNamed(e.repository.owner.login)
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
func (e *event) defaultSender() *account {
	if e.organization == nil {
		return e.repository.owner
	}
	for _, login := range sortedMembers(e.organization) {
		if m := e.organization.members[login]; m.admin {
			return m.user
		}
	}
	panic("an organization without an owner: " + e.organization.login) // the seed's have one
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
func (r *repository) checkCreate(ref string) error {
	switch ref {
	case "":
		return errors.New("ref: needed: the branch or tag that is created")
	case r.mainRef():
		return fmt.Errorf("ref: %q is the default branch: its first push creates it", ref)
	}
	return nil
}

// withheld is why an event is not told to anybody; empty where it is (section 6.2).
func (e *event) withheldReason(body eventBody) string {
	if body.AtOnce == nil {
		return ""
	}
	switch tag := strings.HasPrefix(e.ref, "refs/tags/"); {
	case tag && *body.AtOnce > 3:
		return "more than three tags at once"
	case !tag && e.name == "push" && *body.AtOnce > 5000:
		return "more than 5,000 branches at once"
	}
	return ""
}
