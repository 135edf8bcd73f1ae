package service

import (
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

// applyEffects touches what the table of effects adds to a write, and announces the write to the webhooks.
func (s *Service) applyEffects(r *request) {
	path, _ := decodePath(r.path)
	for _, e := range effects() {
		values := map[string]string{"@": r.caller.name()}
		if e.method != "" && e.method != r.Method || !bind(e.pattern, path, values) {
			continue
		}
		for _, topic := range e.topics {
			topic = strings.ReplaceAll(expand(topic, values), "/@/", "/"+r.caller.name()+"/")
			if owner, ok := strings.CutSuffix(topic, "/@"); ok {
				topic = owner + "/" + r.caller.name()
			}
			r.touch(r.qualify(topic, topic))
		}
		if e.event != "" {
			s.emit(r, e.event, doc{})
		}
	}
}

// effect is a row of reference/effects.tsv.
type effect struct {
	method  string // or ""
	pattern []segment
	event   string
	topics  []string
}

var effects = sync.OnceValue(func() (list []effect) {
	short := strings.NewReplacer("~", "/repos/{owner}/{repo}", "^", "/orgs/{org}")
	for _, column := range readTable("effects.tsv") {
		method, path, hasMethod := strings.Cut(short.Replace(column[0]), " ")
		if !hasMethod {
			method, path = "", method
		}
		list = append(list, effect{method, parseTemplate(path), column[1], strings.Fields(short.Replace(column[2]))})
	}
	return list
})

// Event is a webhook event of a write.
type Event struct {
	Name         string // the value of the event header
	Repository   string // full name, or ""
	Organization string // or ""
	Payload      map[string]any
}

// maxEvents is the number of events that [Service.Events] returns at most.
const maxEvents = 10_000

// emit records an event and sends it to the webhooks that receive it. The action depends on the method unless the
// payload has one.
func (s *Service) emit(r *request, name string, payload doc) {
	e := &event{name: name, repository: r.repo, organization: r.org, at: r.now, payloads: map[string]any{}}
	all := doc{"sender": doc{"login": r.caller.name()}}
	if name != "push" {
		all["action"] = map[string]string{http.MethodPost: "created", http.MethodPatch: "edited", http.MethodPut: "edited", http.MethodDelete: "deleted"}[r.Method]
	}
	event := Event{Name: name, Payload: all}
	if r.repo != nil {
		e.organization, event.Repository = r.repo.owner, r.repo.fullName()
		all["repository"] = repositoryObject(s, r, r.repo)
	}
	if org := e.organization; org != nil && org.members != nil {
		event.Organization, all["organization"] = org.login, organizationSummary(r, org)
	}
	for param, member := range map[string]string{"issue_number": "issue", "pull_number": "pull_request"} {
		if number, err := strconv.Atoi(r.params[param]); err == nil {
			all[member] = doc{"number": number}
		}
	}
	maps.Copy(all, payload)
	s.events = append(s.events, event)
	s.events = s.events[max(0, len(s.events)-maxEvents):]
	e.action, _ = all["action"].(string)
	s.subscribe(e, func(string) any { return all })
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
