package service

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// documentedHandlers are the handlers of the documents' operations, by ID.
var documentedHandlers = map[string]handler{
	"codes-of-conduct/list": show(func(r *request) any {
		return renderAll(codesOfConduct(), func(c codeOfConduct) object { return codeOfConductObject(r, c) })
	}),
	"codes-of-conduct/get": getCodeOfConduct, "gitignore/list-templates": listTemplates, "gitignore/get-template": getTemplate,
	"rate-limit/get": rateLimit, "feeds/get": listFeeds, "graphql": graphQL, "app-manifests/convert": convertManifest,
	"statistics/code-frequency": statistics(codeFrequency), "statistics/commit-activity": statistics(commitActivity),
	"statistics/contributors": statistics(contributors), "statistics/participation": statistics(participation),
	"statistics/punch-card": statistics(punchCard), "dependency-graph/export-sbom": exportSBOM,
	"git-tags/create": createTag, "git-tags/get": getTag,

	"search/code": searchIn("FileContent", fileDocuments), "search/commits": searchIn("Commit", commitDocuments),
	"search/issues": searchIn("Issue", issueDocuments), "search/other": searchOther,

	"watching/list-subscribers": list(func(r *request) []*account { return watchersOf(r.repo) }, userObject),
	"watching/get-subscription": getSubscription, "watching/set-subscription": setSubscription,
	"watching/delete-subscription": func(s *Service, r *request) response {
		delete(r.repo.subscriptions, s.world.user(r.caller))
		return response{status: http.StatusNoContent}
	},
	"watching/list-mine": listWatched, "watching/list-of-user": listWatched,

	"organization-members/list": listMembers, "organization-members/check": checkMember, "organization-members/check-public": checkMember,
	"organization-members/list-invitations": listInvitations, "organization-members/list-failed-invitations": listInvitations,
	"organization-members/create-invitation": createInvitation, "organization-members/cancel-invitation": cancelInvitation,
	"organization-members/list-invitation-teams": listTeams,

	"organization-roles/list": list(func(r *request) []*role { return r.org.roles }, func(r *request, o *role) object {
		return roleObject(o, userObject(r, r.org))
	}),
	"organization-roles/get": getRole, "organization-roles/list-teams": listTeams,
	"organization-roles/assign-team": changeAssignment, "organization-roles/assign-user": changeAssignment,
	"organization-roles/revoke-team": changeAssignment, "organization-roles/revoke-user": changeAssignment,
	"organization-roles/revoke-all-team": changeAssignment, "organization-roles/revoke-all-user": changeAssignment,

	"rulesets/list-repository": listRulesets, "rulesets/list-organization": listRulesets, "rulesets/list-branch-rules": listBranchRules,
	"rulesets/create-repository": createRuleset, "rulesets/create-organization": createRuleset,

	"code-security/list-configurations": listConfigurations, "code-security/create-configuration": createConfiguration,
	"code-security/list-defaults": show(func(r *request) any {
		return renderAll(r.org.defaults, func(d newRepositoryDefault) object {
			return object{{"default_for_new_repos", d.kind}, {"configuration", configurationObject(r, d.configuration)}}
		})
	}),
	"code-security/detach-configuration": detachConfigurations, "code-security/get-configuration": getConfiguration,

	"migrations/list-organization": listMigrations, "migrations/start-organization": startMigration,
	"migrations/list-user": listMigrations, "migrations/start-user": startMigration,
}

// show returns a handler that shows what a request names.
func show(body func(*request) any) handler {
	return func(_ *Service, r *request) response { return respond(body(r)) }
}

// list returns a handler that lists objects.
func list[T, D any](items func(*request) []T, render func(*request, T) D) handler {
	return func(_ *Service, r *request) response {
		return listOf(items(r), func(item T) D { return render(r, item) })
	}
}

// getIndex returns the URI templates of some operations.
func getIndex(_ *Service, req *request) response {
	return response{status: http.StatusOK, body: object{
		{"code_search_url", req.base + "/search/code?q={query}{&page,per_page,sort,order}"},
		{"commit_search_url", req.base + "/search/commits?q={query}{&page,per_page,sort,order}"},
		{"feeds_url", req.base + "/feeds"},
		{"issue_search_url", req.base + "/search/issues?q={query}{&page,per_page,sort,order}"},
		{"rate_limit_url", req.base + "/rate_limit"},
		{"user_subscriptions_url", req.base + "/user/subscriptions"},
	}}
}

// downloads is the server for archives, logs and files.
const downloads = "https://downloads.example.com"

// generic answers an operation without a handler. Objects that no request created or deleted exist, with made-up
// content; objects of a kind exist only if they were created.
func (s *Service) generic(r *request) response {
	path, view := r.qualify(r.path, r.op.view), r.op.view
	exists, read := s.exists(path, view), s.router.reads[view]
	_, isItem := s.router.items[view]
	if slices.Contains(views().Unseen, r.op.ID) {
		r.seq = 0
		return response{status: r.op.created(), body: doc{}}
	}
	if p, ok := s.world.partOf(view); ok && isRead(r.Method) {
		return s.listPart(r, p)
	} else if ok && r.Method == http.MethodPost {
		return s.createPart(r, p)
	}
	switch isAction := read == nil && !isItem; {
	case isAction && r.Method != http.MethodDelete:
		return s.act(r, path)
	case r.Method == http.MethodPost:
		return s.genericPost(r, path)
	case r.Method == http.MethodPut:
		known := exists && s.isKnown(path, view)
		s.merge(r, path)
		if list := s.world.keys[parentOf(path)]; isItem && !known && !slices.Contains(list, keyOf(path)) {
			s.world.keys[parentOf(path)] = append(list, keyOf(path))
		}
		return response{status: r.op.putStatus(known), body: s.render(r, path, view)}
	case !exists:
		return notFound()
	case r.Method == http.MethodPatch:
		s.merge(r, path)
		return response{status: r.op.created(), body: s.render(r, path, view)}
	case r.Method == http.MethodDelete:
		s.remove(r, path)
		status := r.op.created()
		if r.op.lists(http.StatusNoContent) {
			status = http.StatusNoContent
		}
		return response{status: status, body: doc{}}
	case r.op.isCheck():
		return response{status: http.StatusNoContent}
	case r.op.success()[0] == http.StatusFound:
		return response{status: http.StatusFound, location: r.download()}
	case s.router.isList(r.op):
		return listOf(s.keysOf(path, view+"/{}"), func(key string) doc { return s.render(r, itemPath(path, key), view+"/{}") })
	}
	return response{status: r.op.success()[0], body: s.render(r, path, view), modified: s.world.started}
}

// genericPost creates an object in a list or changes an object.
func (s *Service) genericPost(r *request, path string) response {
	_, action, _ := strings.Cut(r.op.ID, "/")
	creates := r.op.lists(http.StatusCreated) || strings.HasPrefix(action, "create") || strings.HasPrefix(action, "add")
	if !creates || !s.router.isList(s.router.reads[r.op.view]) {
		s.merge(r, path)
		return response{status: r.op.created(), body: s.render(r, path, r.op.view)}
	}
	fields := doc{"created_at": timestamp(r.now), "updated_at": timestamp(r.now)}
	maps.Copy(fields, r.body)
	key := s.newKey(r, fields)
	s.world.create(path, key, fields)
	item := itemPath(path, key)
	r.touch(item)
	return response{status: r.op.created(), body: s.render(r, item, r.op.view+"/{}"), location: r.base + r.path + "/" + escape(key)}
}

// act runs an action on the object above the path of the request, such as POST .../runs/7/cancel.
func (s *Service) act(r *request, path string) response {
	above, view := parentOf(path), parentOf(r.op.view)
	if !s.exists(above, view) {
		return notFound()
	}
	s.merge(r, above)["last_action"] = lastOf(path)
	return response{status: r.op.created(), body: s.render(r, above, view)}
}

// newKey returns the key of a new object in the list of the request: a name from the body or the next number.
func (s *Service) newKey(r *request, fields doc) string {
	if item := s.router.items[r.op.view+"/{}"]; item != nil && !isNumbered(item) {
		for _, name := range []string{"name", "key", "login", "title"} {
			if value := r.text(name); value != "" {
				return value
			}
		}
	}
	fields["id"] = s.world.nextID()
	return str(fields["id"])
}

// isNumbered reports whether the keys of an item are numbers.
func isNumbered(item *Operation) bool {
	name := item.lastParameter()
	return (strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_number")) && name != "gist_id" && name != "ghsa_id"
}

func (op *Operation) lastParameter() string { return op.pattern[len(op.pattern)-1].name }

// exists reports whether neither an object nor one above it was deleted.
func (s *Service) exists(path, view string) bool {
	for ; path != ""; path, view = parentOf(path), parentOf(view) {
		_, isKind := s.world.kindOf(view)
		if s.world.isGone(path) || isKind && s.world.find(path) == nil {
			return false
		}
	}
	return true
}

// isKnown reports whether a PUT finds an object: it was stored, or it is part of the made-up content.
func (s *Service) isKnown(path, view string) bool {
	_, isStored := s.world.stored[path]
	return isStored || s.router.items[view] == nil || slices.Contains(s.seeds(parentOf(path), view), keyOf(path))
}

// merge stores the body of a request in the object at a path and returns the fields. A deleted object exists again.
func (s *Service) merge(r *request, path string) doc {
	if s.world.isGone(path) {
		r.touch(path + "/**") // the objects below the path exist again
	}
	if s.world.find(path) == nil {
		s.world.stored[path] = doc{}
	}
	fields := s.world.stored[path]
	maps.Copy(fields, r.body)
	fields["updated_at"] = timestamp(r.now)
	return fields
}

// remove deletes an object. Without a 404 in the table, a single object gets its default content instead.
func (s *Service) remove(r *request, path string) {
	read := s.router.reads[r.op.view]
	isItem := s.router.items[r.op.view] != nil
	if k, ok := s.world.kindOf(r.op.view); ok && k.key == "name" {
		s.renameLabel(r.repo, keyOf(path), "")
	}
	if single := !isItem && read != nil; single && !read.lists(http.StatusNotFound) {
		delete(s.world.stored, path)
	} else if isItem || single && !s.router.isList(read) {
		s.world.stored[path] = nil
	}
}

// seeds returns the keys of the made-up objects of a collection.
func (s *Service) seeds(collection, itemView string) []string {
	item, list, keys := s.router.items[itemView], s.router.reads[parentOf(itemView)], []string{}
	if _, isKind := s.world.kindOf(itemView); isKind {
		return nil
	}
	if item != nil && slices.Contains([]string{"username", "assignee", "target_user"}, item.lastParameter()) {
		for _, u := range s.world.users()[:5] {
			keys = append(keys, u.login)
		}
		return keys
	}
	count := 3
	if list != nil && list.paging != "" && digest(collection)%4 == 0 {
		count = 65 // three pages
	}
	for n := range count {
		key := strconv.Itoa(n + 1)
		if item != nil && !isNumbered(item) {
			key = "name-" + key
		}
		keys = append(keys, key)
	}
	return keys
}

// keysOf returns the keys of the existing objects of a collection.
func (s *Service) keysOf(collection, itemView string) []string {
	keys := s.seeds(collection, itemView)
	for _, key := range s.world.keys[collection] {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return slices.DeleteFunc(keys, func(key string) bool { return s.world.isGone(itemPath(collection, key)) })
}

// render returns the object at a path: made-up fields, and the stored ones.
func (s *Service) render(r *request, path, view string) doc {
	stored, key := s.world.find(path), keyOf(path)
	if k, ok := s.world.kindOf(view); ok && stored != nil {
		return s.show(r, k, stored)
	}
	id, err := strconv.Atoi(key)
	if err != nil {
		id = int(digest(path) % 1_000_000)
	}
	fields := doc{
		"id": id, "node_id": fmt.Sprintf("N_%d", id), "url": r.base + strings.TrimPrefix(path, "/@"+r.caller.name()),
		"created_at": timestamp(s.world.started), "updated_at": timestamp(s.world.started),
	}
	if item := s.router.items[view]; item != nil {
		switch name := item.lastParameter(); {
		case strings.HasSuffix(name, "_number"):
			fields["number"] = id
		case name == "username" || name == "assignee":
			fields["login"] = key
		case !isNumbered(item):
			fields["name"] = key
		}
	}
	maps.Copy(fields, stored)
	return fields
}

// wrapper returns the member that holds the elements of a list, or "" for an array.
func (op *Operation) wrapper() string {
	last := lastOf(op.Path)
	switch {
	case op.category == "search":
		return "items"
	case last == "repositories" && slices.Contains([]string{"actions", "codespaces", "dependabot", "apps"}, op.category):
		return last
	}
	return views().Wrappers[last]
}

// keyOf returns the key of the object at a path.
func keyOf(path string) string {
	key, _ := url.PathUnescape(lastOf(path)) // no error, because escape returned the path
	return key
}

func lastOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func digest(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash returns no error
	return h.Sum32()
}
