package service

import (
	_ "embed"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A write changes its own path, and what touchTree, touchKinds, applyEffects and its handler add.

// touchTree touches the path of a write, the list that shows the object, and the objects above that show it, too. A
// DELETE also touches all paths below.
func (s *Service) touchTree(r *request) {
	r.touch(r.qualify(r.path, r.op.view))
	if r.Method == http.MethodDelete {
		r.touch(r.qualify(r.path, r.op.view) + "/**")
	}
	for path, view := r.path, r.op.view; view != "" && !slices.Contains(roots, view); path, view = parentOf(path), parentOf(view) {
		r.touch(r.qualify(path, view))
		_, isItem := s.router.items[view]
		if isItem {
			r.touch(r.qualify(parentOf(path), parentOf(view)))
		}
		if (isItem || s.router.reads[view] != nil) && !isEmbedded(view) {
			return
		}
	}
}

// roots are the views of objects that show nothing of the paths below them.
var roots = []string{"/repos/{}/{}", "/orgs/{}", "/users/{}", "/enterprises/{}", "/user"}

// embedded are the beginnings of views whose content the object above shows.
var embedded = []string{"/repos/{}/{}/branches/{}/protection", "/repos/{}/{}/hooks/{}/config", "/orgs/{}/hooks/{}/config", "/app/hook/config"}

func isEmbedded(view string) bool {
	return slices.ContainsFunc(embedded, func(start string) bool { return strings.HasPrefix(view, start) })
}

// isDelayed reports whether the real API computes a response later, so that it need not show the last write.
func isDelayed(op *Operation) bool {
	return op.category == "search" || op.category == "activity" && strings.Contains(op.Path, "events") || strings.HasPrefix(op.Path, "/feeds") || op.ID == rateLimitID || strings.Contains(op.Path, "/migrations") ||
		op.category == "metrics" && !strings.Contains(op.Path, "/community/") || strings.Contains(op.Path, "/insights/") || strings.Contains(op.Path, "/settings/billing/")
}

// topicsOf returns the topics that a read shows.
func (s *Service) topicsOf(r *request) []string {
	path := r.qualify(r.path, r.op.view)
	switch {
	case isDelayed(r.op):
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
	for _, e := range effects {
		values := map[string]string{"@": r.caller.name()}
		if e.method != "" && e.method != r.Method || !bind(e.pattern, path, values) {
			continue
		}
		for _, topic := range e.topics {
			topic = strings.ReplaceAll(expand(topic, values), "/@/", "/"+r.caller.name()+"/")
			if owner, ok := strings.CutSuffix(topic, "/@"); ok {
				topic = owner + "/" + r.caller.name()
			}
			r.touch(r.qualify(topic, viewOfTopic(topic)))
		}
		if e.event != "" {
			s.emit(r, e.event, doc{})
		}
	}
}

// viewOfTopic returns the view of a topic for isMine. Only the first and the last segment matter.
func viewOfTopic(topic string) string {
	if path := strings.Split(topic, "/"); len(path) > 3 && path[1] == "orgs" {
		return "/orgs/{}/" + strings.Join(path[3:], "/")
	}
	return topic
}

// effect is a row of reference/effects.tsv.
type effect struct {
	method  string // or ""
	pattern []segment
	event   string
	topics  []string
}

//go:embed reference/effects.tsv
var effectsText string

var effects = func() (list []effect) {
	short := strings.NewReplacer("~", "/repos/{owner}/{repo}", "^", "/orgs/{org}")
	for line := range strings.Lines(effectsText) {
		column := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		method, path, hasMethod := strings.Cut(short.Replace(column[0]), " ")
		if !hasMethod {
			method, path = "", method
		}
		list = append(list, effect{method, parseTemplate(path), column[1], strings.Fields(short.Replace(column[2]))})
	}
	return list
}()

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
