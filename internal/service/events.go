package service

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
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
	Payload                   string
	Targets, Actions, Options []string
}

// eventKinds maps event names to reference/events.yaml.
var eventKinds = readReference[map[string]eventKind]("events.yaml")

// isAvailableTo reports whether webhooks of a kind may receive the event. An event without targets has all kinds.
func (k eventKind) isAvailableTo(kind string) bool {
	return k.Targets == nil || slices.Contains(k.Targets, kind)
}

// accepts reports whether the body of an event may have a member, and whether it must have it.
func (k eventKind) accepts(member string) (may, must bool) {
	all := strings.Fields(k.Payload)
	if member != "action" && member != "repository" {
		return slices.Contains(k.Options, member), false
	}
	must = slices.Contains(all, member)
	return must || slices.Contains(all, member+"?"), must
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
	AtOnce int `json:"at_once"`
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
	// members are objects of the state, and shown names the members that the payload has besides those of its kind.
	members doc
	shown   []string
}

// postEvent handles POST /_service/events: it applies an event to the state, enqueues the deliveries and responds with
// their IDs, or with the reason why no webhook receives the event (Document B section 6.2). eventMu keeps deliveries in
// the order of the events. On an error the state is unchanged.
func (s *Service) postEvent(r *http.Request, text []byte) (any, error) {
	body := eventBody{AtOnce: 1}
	if err := unmarshalStrict(text, &body); err != nil {
		return nil, err
	}
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	e, err := s.applyEvent(r, body)
	if err != nil {
		return nil, err
	}
	reason := ""
	switch {
	case e.isTag() && body.AtOnce > 3:
		reason = "more than three tags at once"
	case !e.isTag() && e.name == "push" && body.AtOnce > 5000:
		reason = "more than 5,000 branches at once"
	case len(e.subscribers) == 0:
		reason = "no webhook is subscribed"
	default:
		return object{{"deliveries", s.deliver(e)}, {"withheld", nil}}, nil
	}
	return object{{"deliveries", []string{}}, {"withheld", reason}}, nil
}

// applyEvent applies an event to the state and selects the webhooks that receive it. The state holds only the default
// branch, so creating another ref does not change the state.
func (s *Service) applyEvent(r *http.Request, body eventBody) (*event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.resolveEvent(r, body)
	if err != nil {
		return nil, err
	}
	switch repo := e.repository; {
	case e.name == "push":
		err = s.push(e, body)
	case e.name == "public" && !repo.private:
		err = fmt.Errorf("repository: %s is already public", repo.fullName())
	case e.name == "public":
		repo.private = false
		s.touchRepo(e.req)
	case e.name == "create" && body.Ref == "":
		err = errors.New("ref: required; name the branch or tag to create")
	case e.name == "create" && body.Ref == repo.mainRef():
		err = fmt.Errorf("ref: %q is the default branch; push to create it", body.Ref)
	}
	if err != nil {
		return nil, err
	}
	if e.req.topics != nil { // a write without a caller
		s.changes.write(e.req.topics)
		s.quirks.Wrote(s.changes.last)
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
	if err := body.validate(); err != nil {
		return nil, err
	}
	e := &event{name: body.Event, action: body.Action, at: time.Now().UTC(), serial: s.lastEvent + 1, payloads: map[string]any{}}
	e.repository, e.organization = s.world.repositoryNamed(body.Repository), s.world.accountNamed(true, body.Organization)
	e.sender = s.world.accounts[strings.ToLower(body.Sender)]
	switch {
	case body.Repository != "" && e.repository == nil:
		return nil, fmt.Errorf("repository: %q does not exist", body.Repository)
	case body.Organization != "" && e.organization == nil:
		return nil, fmt.Errorf("organization: %q does not exist", body.Organization)
	case e.repository == nil && e.organization == nil:
		return nil, errors.New("organization: required without repository")
	case e.repository != nil && e.organization != nil && e.organization != e.repository.owner:
		return nil, fmt.Errorf("organization: %q does not own %s", body.Organization, e.repository.fullName())
	case body.Sender != "" && (e.sender == nil || e.sender.members != nil):
		return nil, fmt.Errorf("sender: %q is not a user", body.Sender)
	}
	if e.repository != nil {
		e.ref, e.organization = cmp.Or(body.Ref, e.repository.mainRef()), s.world.accountNamed(true, e.repository.owner.login)
	}
	if e.sender == nil && e.organization != nil {
		e.sender = s.world.ownerOf(e.organization)
	} else if e.sender == nil {
		e.sender = e.repository.owner
	}
	e.req = &request{Request: r, base: baseURL(r), caller: caller{login: e.sender.login}, repo: e.repository}
	return e, nil
}

var (
	actionForm = regexp.MustCompile(`^[a-z_]*$`)
	refForm    = regexp.MustCompile(`^(refs/(heads|tags)/[^\s~^:?*\[\\/][^\s~^:?*\[\\]*)?$`)
)

// validate returns an error for members that the event does not accept, and for invalid values.
func (b eventBody) validate() error {
	kind, known := eventKinds()[b.Event]
	if !known {
		return fmt.Errorf("event: %q: must be one of %s", b.Event, strings.Join(slices.Sorted(maps.Keys(eventKinds())), ", "))
	}
	given := map[string]bool{
		"action": b.Action != "", "repository": b.Repository != "", "ref": b.Ref != "", "commits": b.Commits != nil,
		"forced": b.Forced, "created": b.Created, "deleted": b.Deleted, "at_once": b.AtOnce != 1,
	}
	for _, member := range slices.Sorted(maps.Keys(given)) {
		switch may, must := kind.accepts(member); {
		case given[member] && !may:
			return fmt.Errorf("%s: not allowed for event %s", member, b.Event)
		case !given[member] && must:
			return fmt.Errorf("%s: required for event %s", member, b.Event)
		}
	}
	switch {
	case !actionForm.MatchString(b.Action):
		return fmt.Errorf("action: %q: must contain only lower-case letters and underscores", b.Action)
	case !refForm.MatchString(b.Ref):
		return fmt.Errorf("ref: %q: must be refs/heads/NAME or refs/tags/NAME", b.Ref)
	case b.AtOnce < 1:
		return fmt.Errorf("at_once: %d: must be 1 or more", b.AtOnce)
	}
	return nil
}

// repositoryNamed returns the repository "owner/name", or nil.
func (w *world) repositoryNamed(fullName string) *repository {
	owner, name, _ := strings.Cut(fullName, "/")
	return w.repo(owner, name)
}

// appID and installationID identify the app that is installed on every organization.
const (
	appID          = 9001
	installationID = 9101
)

// payload returns the body of a delivery to a kind of webhook (Document B section 6.3). No payload has an enterprise.
// Only payloads for apps have an installation.
func (s *Service) payload(e *event, to string) object {
	values := s.payloadValues(e)
	isAbsent := map[string]bool{
		"action": e.action == "", "enterprise": true, "installation": to != onApp, "organization": e.organization == nil, "repository": e.repository == nil,
	}
	var o object
	for _, name := range append(strings.Fields(cmp.Or(eventKinds()[e.name].Payload, undocumentedPayload)), e.shown...) {
		name, optional := strings.CutSuffix(name, "?")
		if o.member(name) == nil && (!optional || !isAbsent[name]) {
			o = append(o, field{name, e.member(name, values)})
		}
	}
	return o
}

// undocumentedPayload are the members of the payloads of all events that the documents do not describe.
const undocumentedPayload = "action? repository? organization? installation? sender"

var payloadTemplates = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, column := range readTable("payloads.tsv") {
		all[column[0]] = column[1]
	}
	return all
})

var placeholder = regexp.MustCompile(`\$[a-z_]+(:[a-z/-]+)?`)

// member returns a member of the payload: an expanded template, or the value with the name.
func (e *event) member(name string, values map[string]any) any {
	template, ok := payloadTemplates()[name]
	if value, known := e.members[name]; known {
		return value
	} else if !ok {
		return values[name]
	}
	return json.RawMessage(placeholder.ReplaceAllStringFunc(template, func(name string) string {
		if _, below, isNew := strings.Cut(name, ":"); isNew {
			return strings.Trim(string(encode(e.newObject(below))), "{}")
		}
		return string(encode(values[name[1:]]))
	}))
}

// payloadValues returns the values of payloads and their templates.
func (s *Service) payloadValues(e *event) map[string]any {
	values := map[string]any{
		"serial": e.serial, "at": timestamp(e.at), "action": e.action, "sender": userObject(e.req, e.sender), "sender_id": e.sender.id, "sender_login": e.sender.login,
		"sender_email": e.sender.email, "ref": e.ref, "ref_type": map[bool]string{true: "tag", false: "branch"}[e.isTag()], "tag": "v" + itoa(e.serial) + ".0.0",
		"installation": object{{"id", installationID}, {"node_id", nodeID("Installation", installationID)}},
		"project":      nodeID("/projects", e.serial), "thread": nodeID("Thread", e.serial), "request_type": strings.TrimPrefix(e.name, "bypass_request_"),
		"status": "queued", "conclusion": nil, "assignee": nil, "state": "open", "prerelease": e.action == "prereleased",
		"draft": !slices.Contains([]string{"published", "released", "prereleased"}, e.action), "description": nil,
	}
	if e.organization != nil {
		values["organization"] = organizationSummary(e.req, e.organization)
	}
	if r := e.repository; r != nil {
		values["repository"], values["repository_id"], values["number"] = repositoryObject(s, e.req, r), r.id, r.lastNumber+e.serial
		values["commit_oid"], values["branch"] = cmp.Or(r.head(), zeroSHA), r.defaultBranch
		if r.description != "" {
			values["description"] = r.description
		}
	}
	if e.name == "create" || e.name == "delete" { // the name of the ref
		values["ref"] = strings.TrimPrefix(strings.TrimPrefix(e.ref, "refs/heads/"), "refs/tags/")
	}
	if p := e.push; p != nil {
		maps.Copy(values, map[string]any{
			"before": p.before, "after": p.after, "base_ref": p.baseRef, "created": p.created, "deleted": p.deleted, "forced": p.forced,
			"compare": e.htmlURL() + "/compare/" + p.before[:12] + "..." + p.after[:12],
			"commits": renderAll(p.commits, func(c *commit) object { return commitObject(e, c) }), "head_commit": nil,
		})
		if p.head != nil {
			values["head_commit"] = commitObject(e, p.head)
		}
	}
	switch e.action {
	case "completed":
		values["status"], values["conclusion"] = "completed", "success"
	case "closed":
		values["state"] = "closed"
	case "assigned", "unassigned":
		values["assignee"] = values["sender"]
	}
	return values
}

// path returns the path of the event's repository or organization in the API.
func (e *event) path() string {
	if e.repository != nil {
		return e.repository.path()
	}
	return "/orgs/" + e.organization.login
}

// htmlURL returns the web page of the event's repository or organization.
func (e *event) htmlURL() string { return e.req.base + strings.TrimPrefix(e.path(), "/repos") }

// newObject returns an object that is not in the state. The object is created at the time of the event, below a path.
func (e *event) newObject(below string) object {
	self := below + "/" + itoa(e.serial)
	return object{
		{"id", e.serial}, {"node_id", nodeID(below, e.serial)},
		{"url", e.req.base + e.path() + self}, {"html_url", e.htmlURL() + self},
		{"created_at", timestamp(e.at)}, {"updated_at", timestamp(e.at)},
	}
}

// isTag reports whether the ref is a tag.
func (e *event) isTag() bool { return strings.HasPrefix(e.ref, "refs/tags/") }
