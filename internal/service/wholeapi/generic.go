package wholeapi

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

// generic answers an operation without a handler. Objects that no request created or deleted exist, with made-up
// content.
func (s *Service) generic(r *request) response {
	path := r.qualify(r.path, r.op.view)
	exists := s.exists(path, r.op.view)
	_, isItem := s.router.items[r.op.view]
	switch {
	case !isRead(r.Method) && !isItem && s.router.reads[r.op.view] == nil && !s.exists(parentOf(path), parentOf(r.op.view)):
		return *problem(http.StatusNotFound, "Not Found")
	case r.Method == http.MethodPost:
		return s.genericPost(r, path)
	case r.Method != http.MethodDelete && !isRead(r.Method) && !isItem && s.router.reads[r.op.view] == nil:
		return s.act(r, path)
	}
	switch r.Method {
	case http.MethodPut:
		known := exists && s.isKnown(path, r.op.view)
		fields := s.merge(r, path)
		if isItem && !known {
			s.world.create(parentOf(path), keyOf(path), fields)
		}
		return response{status: r.op.putStatus(known), body: s.render(r, path, r.op.view)}.without204()
	case http.MethodPatch, http.MethodDelete:
		if !exists {
			return *problem(http.StatusNotFound, "Not Found")
		}
		if r.Method == http.MethodPatch {
			s.merge(r, path)
			return response{status: r.op.success()[0], body: s.render(r, path, r.op.view)}.without204()
		}
		s.remove(path, r.op.view)
		status := r.op.success()[0]
		if r.op.lists(http.StatusNoContent) {
			status = http.StatusNoContent
		}
		return response{status: status, body: doc{}}.without204()
	}
	switch {
	case !exists:
		return *problem(http.StatusNotFound, "Not Found")
	case r.op.isCheck():
		return response{status: http.StatusNoContent}
	case r.op.success()[0] == http.StatusFound:
		return response{status: http.StatusFound, location: s.config.Downloads + r.path}
	case r.op.ID == "meta/get-zen", r.op.ID == "meta/get-octocat":
		return response{status: http.StatusOK, text: []byte("Keep it logically awesome."), kind: "text/plain; charset=utf-8"}
	case s.router.isList(r.op):
		return response{status: http.StatusOK, list: s.elements(r, path)}
	}
	body := s.render(r, path, r.op.view)
	return response{status: r.op.success()[0], body: body, modified: s.world.started}
}

// genericPost creates an object in a list, changes an object or runs an action.
func (s *Service) genericPost(r *request, path string) response {
	_, action, _ := strings.Cut(r.op.ID, "/")
	list := s.router.reads[r.op.view]
	status := r.op.success()[0]
	if r.op.lists(http.StatusCreated) {
		status = http.StatusCreated
	}
	switch creates := status == http.StatusCreated || strings.HasPrefix(action, "create") || strings.HasPrefix(action, "add"); {
	case slices.Contains(readOnlyPosts, r.op.ID):
		r.seq = 0
		return response{status: status, body: doc{"items": []any{}}}.without204()
	case list != nil && s.router.isList(list) && creates:
		fields := doc{"created_at": stamp(r.now), "updated_at": stamp(r.now)}
		maps.Copy(fields, r.body)
		key := s.newKey(r, fields)
		s.world.create(path, key, fields)
		item := itemPath(path, key)
		r.touch(item)
		return response{status: status, body: s.render(r, item, r.op.view+"/{}"), location: r.base + r.path + "/" + escape(key)}.without204()
	case list == nil:
		return s.act(r, path)
	}
	s.merge(r, path)
	return response{status: status, body: s.render(r, path, r.op.view)}.without204()
}

// act runs an action on the object above the path of the request, such as POST .../runs/7/cancel.
func (s *Service) act(r *request, path string) response {
	s.merge(r, parentOf(path))["last_action"] = lastOf(path)
	status := r.op.success()[0]
	if r.op.lists(http.StatusCreated) {
		status = http.StatusCreated
	}
	return response{status: status, body: s.render(r, parentOf(path), parentOf(r.op.view))}.without204()
}

// readOnlyPosts are POST operations that change nothing.
var readOnlyPosts = []string{
	"markdown/render", "markdown/render-raw", "repos/generate-release-notes", "apps/check-token", "orgs/list-attestations-bulk",
	"users/list-attestations-bulk",
}

// newKey returns the key of a new object in the list of the request: a name from the body or the next number.
func (s *Service) newKey(r *request, fields doc) string {
	item := s.router.items[r.op.view+"/{}"]
	if item != nil && !isNumbered(item) {
		for _, name := range []string{"name", "key", "login", "title", "secret_name", "username"} {
			if value, ok := r.body[name].(string); ok && value != "" {
				return value
			}
		}
	}
	id := s.world.nextID()
	fields["id"] = id
	return strconv.Itoa(id)
}

// isNumbered reports whether the keys of an item are numbers.
func isNumbered(item *Operation) bool {
	name := item.pattern[len(item.pattern)-1].name
	return (strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_number") || name == "number") && name != "gist_id" && name != "ghsa_id"
}

// putStatus returns the status of a PUT: 201 if it created an object, if the operation distinguishes that.
func (op *Operation) putStatus(known bool) int {
	list := op.success()
	at := slices.Index(list, http.StatusCreated)
	if at < 0 || len(list) == 1 || !known {
		return list[max(at, 0)]
	}
	return list[1-at]
}

// without204 removes the body of statuses that have none.
func (resp response) without204() response {
	if resp.status == http.StatusNoContent || resp.status == http.StatusResetContent {
		resp.body, resp.location = nil, ""
	}
	return resp
}

// strict are the views of objects that exist only if a request or the seed created them.
var strict = []string{
	"/repos/{}/{}/issues/{}", "/repos/{}/{}/pulls/{}", "/repos/{}/{}/issues/comments/{}", "/repos/{}/{}/pulls/comments/{}",
	"/repos/{}/{}/comments/{}", "/repos/{}/{}/labels/{}", "/repos/{}/{}/milestones/{}", "/repos/{}/{}/releases/{}",
	"/repos/{}/{}/releases/assets/{}", "/repos/{}/{}/check-runs/{}", "/repos/{}/{}/check-suites/{}", "/orgs/{}/teams/{}",
	"/repos/{}/{}/pulls/{}/reviews/{}",
}

// exists reports whether neither an object nor one above it was deleted.
func (s *Service) exists(path, view string) bool {
	for ; path != ""; path, view = parentOf(path), parentOf(view) {
		o := s.world.objects[path]
		if o != nil && o.gone || o == nil && slices.Contains(strict, view) {
			return false
		}
	}
	return true
}

// isKnown reports whether a PUT finds an object: it was stored, or it is part of the made-up content.
func (s *Service) isKnown(path, view string) bool {
	if s.world.objects[path] != nil {
		return true
	}
	item := s.router.items[view]
	return item == nil || slices.Contains(s.seeds(parentOf(path), view), keyOf(path))
}

// merge stores the body of a request in the object at a path and returns the fields. A deleted object exists again.
func (s *Service) merge(r *request, path string) doc {
	o := s.world.objects[path]
	if o == nil || o.gone {
		o = &object{fields: doc{}}
		s.world.objects[path] = o
	}
	maps.Copy(o.fields, r.body)
	o.fields["updated_at"] = stamp(r.now)
	return o.fields
}

// remove deletes an object. Without a 404 in the table, a single object gets its default content instead.
func (s *Service) remove(path, view string) {
	read := s.router.reads[view]
	if s.router.items[view] == nil && read != nil && !read.lists(http.StatusNotFound) {
		delete(s.world.objects, path)
		return
	}
	if s.router.items[view] != nil || read != nil && !s.router.isList(read) {
		s.world.objects[path] = &object{gone: true}
	}
}

// seeds returns the keys of the made-up objects of a collection.
func (s *Service) seeds(collection, itemView string) []string {
	if slices.Contains(strict, itemView) {
		return nil
	}
	item := s.router.items[itemView]
	count := 3
	if list := s.router.reads[parentOf(itemView)]; list != nil && list.paging != "" && hash(collection)%4 == 0 {
		count = 65 // three pages
	}
	var keys []string
	if item != nil && slices.Contains([]string{"username", "assignee", "target_user"}, item.pattern[len(item.pattern)-1].name) {
		for _, u := range s.world.users {
			keys = append(keys, u.login)
		}
		return keys
	}
	for n := range count {
		if item == nil || isNumbered(item) {
			keys = append(keys, strconv.Itoa(n+1))
		} else {
			keys = append(keys, fmt.Sprintf("name-%d", n+1))
		}
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
	return slices.DeleteFunc(keys, func(key string) bool {
		o := s.world.objects[itemPath(collection, key)]
		return o != nil && o.gone
	})
}

// elements returns the objects of a list.
func (s *Service) elements(r *request, path string) []any {
	view := r.op.view + "/{}"
	list := []any{}
	for _, key := range s.keysOf(path, view) {
		list = append(list, s.render(r, itemPath(path, key), view))
	}
	return list
}

// render returns the object at a path: made-up fields, and the stored ones.
func (s *Service) render(r *request, path, view string) doc {
	key := keyOf(path)
	id, err := strconv.Atoi(key)
	if err != nil {
		id = int(hash(path) % 1_000_000)
	}
	address := r.base + strings.TrimPrefix(path, "/@"+r.caller.login)
	fields := doc{"id": id, "node_id": fmt.Sprintf("N_%d", id), "url": address, "created_at": stamp(s.world.started), "updated_at": stamp(s.world.started)}
	if item := s.router.items[view]; item != nil {
		switch name := item.pattern[len(item.pattern)-1].name; {
		case strings.HasSuffix(name, "_number"):
			fields["number"] = id
		case name == "username" || name == "assignee":
			fields["login"] = key
		case !isNumbered(item):
			fields["name"] = key
		}
	}
	maps.Copy(fields, s.world.find(path))
	return fields
}

// wrappers are the members that hold the elements of lists with a total, by the last literal of the path. An empty name
// is the literal itself.
var wrappers = map[string]string{
	"runs": "workflow_runs", "jobs": "", "artifacts": "", "caches": "actions_caches", "runners": "", "secrets": "", "variables": "",
	"workflows": "", "check-runs": "check_runs", "check-suites": "check_suites", "organization-secrets": "secrets",
	"organization-variables": "variables", "runner-groups": "runner_groups", "hosted-runners": "runners", "codespaces": "",
	"installations": "", "environments": "", "deployment-branch-policies": "branch_policies", "network-configurations": "network_configurations",
	"seats": "", "devcontainers": "", "usage-by-repository": "repository_cache_usages", "private-registries": "configurations",
}

// wrapper returns the member that holds the elements of a list, or "" for an array.
func (op *Operation) wrapper() string {
	last := lastOf(op.Path)
	name, ok := wrappers[last]
	switch {
	case strings.HasPrefix(op.Path, "/search/"):
		return "items"
	case last == "repositories" && (op.category == "actions" || op.category == "codespaces" || op.category == "dependabot" || op.category == "apps"):
		return last
	case !ok || op.category == "packages":
		return ""
	case name == "":
		return last
	}
	return name
}

// keyOf returns the key of the object at a path.
func keyOf(path string) string {
	key, _ := url.PathUnescape(lastOf(path)) // escape made it
	return key
}

func lastOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash returns no error
	return h.Sum32()
}
