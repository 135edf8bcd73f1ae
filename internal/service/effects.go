package service

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// changes records which writes changed which topics. A topic is the canonical path of a read, sometimes followed by "
// ref=" and the name of a branch. Writes are numbered from 1; the number of a write is the revision of all that it
// changed.
type changes struct {
	last  int64
	exact map[string][]int64
	below map[string][]int64 // by the path above the changed paths
	globs map[string][]int64 // by a pattern in which * is one segment, and a last ** all further ones
}

func newChanges() *changes {
	return &changes{exact: map[string][]int64{}, below: map[string][]int64{}, globs: map[string][]int64{}}
}

// touch records that write n changed a topic. A topic that ends with "/**" is the path before it with all paths below.
func (c *changes) touch(n int64, topic string) {
	in := c.exact
	path, isBelow := strings.CutSuffix(topic, "/**")
	if strings.Contains(path, "*") {
		in = c.globs
	} else if isBelow {
		in, topic = c.below, path
	}
	if list := in[topic]; len(list) == 0 || list[len(list)-1] != n {
		in[topic] = append(list, n)
	}
}

// write numbers a write that changed topics.
func (c *changes) write(topics []string) {
	c.last++
	for _, topic := range topics {
		c.touch(c.last, topic)
	}
}

// writes returns the writes that changed one of the topics, as one ascending list for each way to touch a topic.
func (c *changes) writes(topics []string) (lists [][]int64) {
	for _, topic := range topics {
		lists = append(lists, c.exact[topic])
		path, _, _ := strings.Cut(topic, " ")
		for above := path; above != ""; above = parentOf(above) {
			lists = append(lists, c.below[above])
		}
		for pattern, list := range c.globs {
			if covers(pattern, path) {
				lists = append(lists, list)
			}
		}
	}
	return lists
}

// covers reports whether a pattern, in which * is one segment and a last ** all further segments, covers a path.
func covers(pattern, path string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if want[len(want)-1] == "**" {
		want = want[:len(want)-1]
		have = have[:min(len(have), len(want))]
	}
	return slices.EqualFunc(want, have, func(w, h string) bool { return w == "*" || w == h })
}

// revision returns the number of the last write that changed one of the topics, or 0.
func (c *changes) revision(topics []string) int64 {
	var last int64
	for _, list := range c.writes(topics) {
		if len(list) > 0 {
			last = max(last, list[len(list)-1])
		}
	}
	return last
}

// since returns the writes after a revision that changed one of the topics.
func (c *changes) since(topics []string, revision int64) []int64 {
	var all []int64
	for _, list := range c.writes(topics) {
		at, _ := slices.BinarySearch(list, revision+1)
		all = append(all, list[at:]...)
	}
	return all
}

// A body carries its revision as trailing white space: a line feed, and the binary digits as spaces and tabs. JSON
// ignores it. Lists of strings, empty lists and plain text can carry it, too.

// mark appends a revision to a body.
func mark(body []byte, revision int64) []byte {
	body = append(slices.Clip(body), '\n')
	for _, digit := range strconv.FormatInt(revision, 2) {
		body = append(body, map[rune]byte{'0': ' ', '1': '\t'}[digit])
	}
	return body
}

// A write changes its own path, and what touchTree, touchKinds, applyEffects and its handler add.

// touchTree touches the path of a write, the list that shows the object, and the objects above that show it, too. A
// DELETE also touches all paths below.
func (s *Service) touchTree(r *request) {
	r.touch(r.qualify(r.path, r.op.view))
	if r.Method == http.MethodDelete {
		r.touch(r.qualify(r.path, r.op.view) + "/**")
	}
	for path, view := r.path, r.op.view; view != "" && !anyCovers(views().Roots, view); path, view = parentOf(path), parentOf(view) {
		r.touch(r.qualify(path, view))
		_, isItem := s.router.items[view]
		if isItem {
			r.touch(r.qualify(parentOf(path), parentOf(view)))
		}
		if (isItem || s.router.reads[view] != nil) && !anyCovers(views().Embedded, view) {
			return
		}
	}
}

// views is the content of reference/views.yaml.
var views = readReference[struct {
	Mine, Roots, Embedded, Delayed, Singles, Unseen []string

	Wrappers       map[string]string
	Parts          map[string]part
	RepositoryURLs [][2]string       `yaml:"repository_urls"`
	NodePrefixes   map[string]string `yaml:"node_prefixes"`
}]("views.yaml")

// anyCovers reports whether one of the patterns covers a path.
func anyCovers(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return covers(pattern, path) })
}

// topicsOf returns the topics that a read shows.
func (s *Service) topicsOf(r *request) []string {
	path := r.qualify(r.path, r.op.view)
	switch {
	case anyCovers(views().Delayed, r.op.view):
		return nil
	case r.repo == nil && strings.HasSuffix(r.op.view, "/issues"):
		if filter := r.issueFilter(); filter != "all" {
			return []string{path + " " + filter}
		}
		return []string{r.path + " all"}
	case r.repo != nil:
		if topics := gitTopics(r); topics != nil {
			return topics
		}
	}
	return []string{path}
}

// applyEffects touches what rows of the table of effects add to a write, and announces the write to the webhooks. before
// has the members of events that a deletion removes.
func (s *Service) applyEffects(r *request, rows []effect, before doc, written any) {
	if r.Method == http.MethodDelete {
		written = nil
	}
	members := before
	for name, value := range s.membersOf(r, rows, written) {
		if value != nil || before[name] == nil {
			members[name] = value
		}
	}
	for _, e := range rows {
		for _, topic := range e.topics {
			topic = strings.ReplaceAll(expand(topic, e.values), "/@/", "/"+r.caller.name()+"/")
			if owner, ok := strings.CutSuffix(topic, "/@"); ok {
				topic = owner + "/" + r.caller.name()
			}
			r.touch(r.qualify(topic, topic))
		}
		repo := r.repo
		for _, r.repo = range s.concerned(r) {
			if e.event != "" {
				s.emit(r, &event{name: e.event, action: cmp.Or(r.action, e.action(r)), members: members, shown: e.shown})
			}
		}
		r.repo = repo
	}
}

// concerned returns the repositories that a write to an organization names, or the repository of the request.
func (s *Service) concerned(r *request) []*repository {
	names := namesIn(r.body["repository_names"])
	if r.repo != nil || r.org == nil || len(names) == 0 {
		return []*repository{r.repo}
	}
	return slices.DeleteFunc(s.world.reposOf(r.org.login), func(repo *repository) bool { return !slices.Contains(names, repo.name) })
}

// effect is a row of reference/effects.tsv.
type effect struct {
	method        string // or ""
	pattern       []segment
	member, value string // of the body; or ""
	event         string // or ""
	actions       []string
	shown         []string          // the members of the event
	sources       map[string]string // of some of these members
	topics        []string
	values        map[string]string // of the parameters in the path of a write
}

var effects = sync.OnceValue(func() (list []effect) {
	short := strings.NewReplacer("~", "/repos/{owner}/{repo}", "^", "/orgs/{org}")
	for _, column := range readTable("effects.tsv") {
		e := effect{topics: strings.Fields(short.Replace(column[2])), sources: map[string]string{}}
		e.method = column[0][:strings.Index(column[0], " ")+1]
		path, condition, _ := strings.Cut(short.Replace(column[0][len(e.method):]), "?")
		e.pattern, e.method = parseTemplate(path), strings.TrimSpace(e.method)
		e.member, e.value, _ = strings.Cut(condition, "=")
		for i, text := range strings.Fields(short.Replace(column[1])) {
			name, source, hasSource := strings.Cut(text, "=")
			switch {
			case i == 0:
				e.event = name
			case i == 1:
				e.actions = strings.Split(strings.Trim(name, "-"), "/")
			case hasSource:
				e.sources[name] = source
				fallthrough
			default:
				e.shown = append(e.shown, name)
			}
		}
		list = append(list, e)
	}
	return list
})

// effectsOf returns the rows of the table of effects for a write. Only the first of several rows with one event keeps it.
func effectsOf(r *request) (rows []effect) {
	path, _ := decodePath(r.path)
	for _, e := range effects() {
		e.values = map[string]string{"@": r.caller.name()}
		if e.method != "" && e.method != r.Method || e.member != "" && fmt.Sprint(r.body[e.member]) != e.value || !bind(e.pattern, path, e.values) {
			continue
		}
		if slices.ContainsFunc(rows, func(other effect) bool { return other.event == e.event }) {
			e.event = ""
		}
		rows = append(rows, e)
	}
	return rows
}

// action returns the action of the event of a write.
func (e effect) action(r *request) string {
	switch {
	case r.Method == http.MethodDelete:
		return e.actions[len(e.actions)-1]
	case len(e.actions) == 3 && (r.Method == http.MethodPatch || r.known):
		return e.actions[1]
	}
	return e.actions[0]
}

// membersOf returns the members of events that have a source in the table. written is the written object.
func (s *Service) membersOf(r *request, rows []effect, written any) doc {
	members, fields := doc{}, doc{}
	_ = json.Unmarshal(encode(written), &fields) // a list has no members
	for _, e := range rows {
		for name, value := range fields {
			if text, ok := value.(string); ok {
				e.values[name] = text
			}
		}
		for name, source := range e.sources {
			switch rest := source[1:]; {
			case source == ".":
				members[name] = written
			case source[0] == '.':
				members[name] = fields[rest]
			case source[0] == '$':
				members[name] = r.body[rest]
			case source[0] == '/':
				members[name] = s.read(r, expand(source, e.values))
			case source != "null":
				members[name] = json.RawMessage(source)
			default:
				members[name] = nil
			}
		}
	}
	return members
}

// subjects returns the objects that a request names, as members of events.
func (s *Service) subjects(r *request) doc {
	members := doc{"starred_at": timestamp(r.now)}
	if r.repo != nil {
		members["name"] = r.repo.fullName()
	}
	if r.issue != nil {
		members["issue"], members["parent_issue_id"], members["blocked_issue_id"] = renderIssue(s, r, r.issue), r.issue["id"], r.issue["id"]
		id := cmp.Or(r.params["issue_id"], fmt.Sprint(cmp.Or(r.body["sub_issue_id"], r.body["issue_id"])))
		for _, other := range s.world.where(r.repo, "issues", "id", id) {
			for _, role := range []string{"sub_issue", "blocking_issue"} {
				members[role], members[role+"_id"], members[role+"_repo"] = renderIssue(s, r, other), other["id"], repositoryObject(s, r, r.repo)
			}
		}
	}
	if r.pull != nil {
		members["pull_request"], members["number"] = renderPull(s, r, r.pull), r.pull["number"]
	}
	if r.team != nil {
		members["team"] = teamObject(r, r.org, r.team)
	}
	if user := s.world.accounts[r.params["username"]]; user != nil {
		members["member"] = userObject(r, user)
	}
	return members
}

// read returns the body of the response to a GET request of the caller for a canonical path, or nil.
func (s *Service) read(r *request, path string) any {
	in := &request{Request: r.WithContext(r.Context()), base: r.base, caller: r.caller, now: r.now}
	in.Method = http.MethodGet
	if in.op, in.params = s.route(in.Method, path); in.op == nil {
		return nil
	}
	hasTarget, isVisible := s.resolve(in)
	resp := s.handler(in, hasTarget, isVisible)(s, in)
	switch {
	case resp.status != http.StatusOK:
		return nil
	case resp.list != nil:
		return resp.list(0, resp.total)
	}
	return resp.body
}

// Event is a webhook event of a write.
type Event struct {
	Name         string // the value of the event header
	Repository   string // full name, or ""
	Organization string // or ""
	Payload      json.RawMessage
}

// maxEvents is the number of events that [Service.Events] returns at most.
const maxEvents = 10_000

// emit records an event of a write, and sends it to the webhooks that receive it. An event of an issue that is a pull
// request is one of the pull request.
func (s *Service) emit(r *request, e *event) {
	s.lastEvent++
	e.repository, e.organization, e.sender, e.at, e.serial, e.req, e.payloads = r.repo, r.org, s.actor(r), r.now, s.lastEvent, r, map[string]any{}
	members := s.subjects(r)
	maps.Copy(members, e.members)
	e.members = members
	if e.name == "issues" && r.pull != nil {
		e.name, e.shown = "pull_request", nil
	}
	if e.action == "edited" {
		e.members["changes"], e.shown = doc{}, append(slices.Clip(e.shown), "changes")
	}
	recorded := Event{Name: e.name}
	if r.repo != nil {
		e.organization, e.ref, recorded.Repository = r.repo.owner, cmp.Or(e.ref, r.repo.mainRef()), r.repo.fullName()
	}
	if e.organization != nil && e.organization.members == nil {
		e.organization = nil // a user owns the repository
	}
	if e.organization != nil {
		recorded.Organization = e.organization.login
	}
	recorded.Payload = encode(s.payload(e, onOrganization)) // now: later writes change the objects
	s.events = append(s.events, recorded)
	s.events = s.events[max(0, len(s.events)-maxEvents):]
	s.subscribe(e, func(kind string) any { return s.payload(e, kind) })
	s.deliver(e)
}

// Events returns the webhook events of the writes since the last call.
func (s *Service) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// Missing returns which of the writes a GET request had to show, if its response has the revision. It counts such a stale
// read in [Violations].
func (s *Service) Missing(read *http.Request, revision int64, written []int64) []int64 {
	missing := slices.DeleteFunc(s.changedSince(read, revision), func(n int64) bool { return !slices.Contains(written, n) })
	slices.Sort(missing)
	if len(missing) > 0 {
		s.meter.recordStale()
	}
	return slices.Compact(missing)
}

// changedSince returns the writes after a revision that changed what a read shows.
func (s *Service) changedSince(read *http.Request, revision int64) []int64 {
	r := &request{Request: read, query: read.URL.Query()}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.op, r.params = s.route(http.MethodGet, read.URL.EscapedPath())
	var ok bool
	if r.caller, ok = s.authenticate(r.Request); !ok || r.op == nil {
		return nil
	}
	s.resolve(r)
	return s.changes.since(s.topicsOf(r), revision)
}
