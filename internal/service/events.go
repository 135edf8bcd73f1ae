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

// These are the kinds of webhook. The kind is the type of the webhook's target (Document B section 6.1).
const (
	onRepository   = "repository"
	onOrganization = "organization"
	onApp          = "app"
)

// eventKind is an event of reference/events.yaml.
type eventKind struct {
	Targets []string `yaml:"targets"`
	Payload string   `yaml:"payload"`
	Actions []string `yaml:"actions"`
	Options []string `yaml:"options"`
}

// eventKinds maps event names to reference/events.yaml.
var eventKinds = func() map[string]eventKind {
	kinds := readReference[map[string]eventKind]("events.yaml")
	for name, kind := range kinds {
		if kind.Targets == nil {
			kind.Targets = []string{onRepository, onOrganization, onApp}
			kinds[name] = kind
		}
	}
	return kinds
}()

// has reports whether payloads may have a member, and whether they always have the member.
func (k eventKind) has(member string) (listed, required bool) {
	all := strings.Fields(k.Payload)
	required = slices.Contains(all, member)
	return required || slices.Contains(all, member+"?"), required
}

// eventBody is the body of POST /_service/events. It describes the event to create.
type eventBody struct {
	Event      string `json:"event"`
	Action     string `json:"action"`
	Repository string `json:"repository"` // "owner/name"
	// Organization is required if Repository is empty.
	Organization string `json:"organization"`
	// Sender is the login of a user. The default is the organization's first owner.
	Sender string `json:"sender"`
	// Ref is a full ref. The default is the ref of the default branch.
	Ref string `json:"ref"`
	// Commits is the number of pushed commits. The default is 1 for a branch, else 0.
	Commits *int `json:"commits"`
	Forced  bool `json:"forced"`
	Created bool `json:"created"`
	Deleted bool `json:"deleted"`
	// AtOnce is the number of branches or tags that were pushed or created together, including Ref. The default is 1. The
	// event describes only Ref.
	AtOnce *int `json:"at_once"`
}

// event is an event that a write or a request to POST /_service/events created.
type event struct {
	name, action string
	repository   *repository // nil for events without a repository
	organization *account    // nil if a user owns the repository
	sender       *account
	ref          string
	push         *pushResult // set for event push
	at           time.Time
	serial       int // the ID of objects that are not in the state
	// req is the request whose base URL the payloads use. The caller of req is the sender.
	req *request
	// subscribers are the webhooks that receive the event. payloads holds the payload for each kind of webhook.
	subscribers []*hook
	payloads    map[string]any
}

// postEvent handles POST /_service/events: it creates an event and responds with the IDs of the deliveries.
func (s *Service) postEvent(w http.ResponseWriter, r *http.Request) {
	var body eventBody
	err := readControlJSON(w, r, &body)
	if err == nil {
		var result object
		if result, err = s.createEvent(r, body); err == nil {
			writeJSON(w, http.StatusAccepted, result)
		}
	}
	if err != nil {
		badRequest(w, err)
	}
}

// createEvent applies an event to the state and enqueues the deliveries. eventMu keeps deliveries in the order of the
// events. On an error the state is unchanged.
func (s *Service) createEvent(r *http.Request, body eventBody) (object, error) {
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	e, err := s.applyEvent(r, body)
	if err != nil {
		return nil, err
	}
	if reason := e.withheldReason(body); reason != "" {
		return object{{"deliveries", []string{}}, {"withheld", reason}}, nil
	}
	if len(e.subscribers) == 0 {
		return object{{"deliveries", []string{}}, {"withheld", "no webhook is subscribed"}}, nil
	}
	return object{{"deliveries", s.deliver(e)}, {"withheld", nil}}, nil
}

// applyEvent applies an event to the state and selects the webhooks that receive it.
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
	s.subscribe(e, func(kind string) any { return s.payload(e, kind) })
	return e, nil
}

// subscribe selects the webhooks that receive an event, and sets the payload for each of their kinds.
func (s *Service) subscribe(e *event, payload func(kind string) any) {
	for _, k := range s.hooks {
		if k.receives(e) {
			e.subscribers = append(e.subscribers, k)
			if e.payloads[k.kind] == nil {
				e.payloads[k.kind] = payload(k.kind)
			}
		}
	}
}

// resolveEvent looks up the objects that a body names. Its errors name the invalid member.
func (s *Service) resolveEvent(r *http.Request, body eventBody) (*event, error) {
	kind, known := eventKinds[body.Event]
	if !known {
		return nil, fmt.Errorf("event: %q: must be one of %s", body.Event, strings.Join(slices.Sorted(maps.Keys(eventKinds)), ", "))
	}
	if err := kind.validate(body); err != nil {
		return nil, err
	}
	e := &event{name: body.Event, action: body.Action, at: time.Now().UTC(), serial: s.lastEvent + 1, payloads: map[string]any{}}
	if err := s.world.locate(e, kind, body); err != nil {
		return nil, err
	}
	e.sender = s.world.accounts[strings.ToLower(body.Sender)]
	switch {
	case body.Sender == "":
		e.sender = s.world.defaultSender(e)
	case e.sender == nil || e.sender.members != nil:
		return nil, fmt.Errorf("sender: %q is not a user", body.Sender)
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

// validate returns an error for members that the event does not accept, and for invalid values.
func (k eventKind) validate(body eventBody) error {
	for _, option := range []struct {
		name  string
		given bool
	}{{"ref", body.Ref != ""}, {"commits", body.Commits != nil}, {"forced", body.Forced}, {"created", body.Created}, {"deleted", body.Deleted}, {"at_once", body.AtOnce != nil}} {
		if option.given && !slices.Contains(k.Options, option.name) {
			return fmt.Errorf("%s: not allowed for event %s", option.name, body.Event)
		}
	}
	listed, required := k.has("action")
	switch {
	case body.Action != "" && !listed:
		return fmt.Errorf("action: not allowed for event %s", body.Event)
	case body.Action == "" && required:
		return fmt.Errorf("action: required for event %s", body.Event)
	case body.Action != "" && !actionForm.MatchString(body.Action):
		return fmt.Errorf("action: %q: must contain only lower-case letters and underscores", body.Action)
	case body.Ref != "" && !refForm.MatchString(body.Ref):
		return fmt.Errorf("ref: %q: must be refs/heads/NAME or refs/tags/NAME", body.Ref)
	case body.AtOnce != nil && *body.AtOnce < 1:
		return fmt.Errorf("at_once: %d: must be 1 or more", *body.AtOnce)
	}
	return nil
}

// locate sets the repository and the organization of an event.
func (w *world) locate(e *event, kind eventKind, body eventBody) error {
	listed, required := kind.has("repository")
	switch e.repository = w.repositoryNamed(body.Repository); {
	case body.Repository != "" && !listed:
		return fmt.Errorf("repository: not allowed for event %s", body.Event)
	case body.Repository == "" && required:
		return fmt.Errorf("repository: required for event %s", body.Event)
	case body.Repository != "" && e.repository == nil:
		return fmt.Errorf("repository: %q does not exist", body.Repository)
	}
	switch e.organization = w.organizationNamed(body.Organization); {
	case body.Organization != "" && e.organization == nil:
		return fmt.Errorf("organization: %q does not exist", body.Organization)
	case e.repository == nil && e.organization == nil:
		return errors.New("organization: required without repository")
	case e.repository == nil:
		return nil
	case e.organization != nil && e.organization != e.repository.owner:
		return fmt.Errorf("organization: %q does not own %s", body.Organization, e.repository.fullName())
	}
	e.organization = w.organizationNamed(e.repository.owner.login)
	return nil
}

// repositoryNamed returns the repository "owner/name", or nil.
func (w *world) repositoryNamed(fullName string) *repository {
	owner, name, _ := strings.Cut(fullName, "/")
	return w.repo(owner, name)
}

// organizationNamed returns the organization with a login, or nil.
func (w *world) organizationNamed(login string) *account {
	if a := w.accounts[strings.ToLower(login)]; a != nil && a.members != nil {
		return a
	}
	return nil
}

// defaultSender returns the sender of events whose body names no sender.
func (w *world) defaultSender(e *event) *account {
	if e.organization == nil {
		return e.repository.owner
	}
	return w.ownerOf(e.organization)
}

// publish makes a private repository public.
func (r *repository) publish() error {
	if !r.private {
		return fmt.Errorf("repository: %s is already public", r.fullName())
	}
	r.private = false
	return nil
}

// checkCreate returns an error if a ref cannot be created. The state holds only the default branch, so creating another
// ref does not change the state.
func (r *repository) checkCreate(ref string) error {
	switch ref {
	case "":
		return errors.New("ref: required; name the branch or tag to create")
	case r.mainRef():
		return fmt.Errorf("ref: %q is the default branch; push to create it", ref)
	}
	return nil
}

// withheldReason returns the reason why no webhook receives an event, or an empty string (section 6.2).
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
