package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Named contains what a call names, and what it may reach besides. Names are in lower case.
type Named struct {
	Repositories []string // OWNER/NAME
	Owners       []string // whose own objects the call reaches
	// Whole are owners all of whose repositories the call reaches, such as those of a search.
	Whole []string
	// Wide are owners all of whose repositories the call may reach, and Others is a reason why it may reach any repository. Both need an
	// entry of the operation in [Scope.Operations].
	Wide     []string
	Others   string
	numbered []numberedName
	// Followed are those of Repositories by a former name of which the upstream may also find a renamed or transferred repository.
	Followed []string
}

// numberedName is a name that the call has as a number. A refusal must not show the name.
type numberedName struct {
	kind         IDs
	number, name string
}

// errNumber returns the refusal for a number outside of the scope, and for a number without a name, so that clients cannot
// distinguish them.
func errNumber(number string) error {
	return scopeErrorf("the number %.20s names nothing in its scope", number)
}

// IDs are kinds of numbers for which the API has names. The value begins the path that shows the name.
type IDs string

// Kinds of numbers. RepositoryNames is for names whose number is unknown.
const (
	RepositoryNames IDs = "/repos/"
	RepositoryIDs   IDs = "/repositories/"
	OrganizationIDs IDs = "/organizations/"
	UserIDs         IDs = "/user/"
)

// NameOf returns the name behind a number: OWNER/NAME of a repository, or the login of an owner. The name is empty if the upstream
// shows none. Errors of NameOf are returned unchanged.
type NameOf func(kind IDs, id string) (string, error)

// ScopeError is the reason why a scope does not permit a call.
type ScopeError struct{ Reason string }

func (e *ScopeError) Error() string { return e.Reason }

func scopeErrorf(format string, arguments ...any) error {
	return &ScopeError{fmt.Sprintf(format, arguments...)}
}

// target is the place of the owner and the name of a repository in a body.
type target struct {
	Owner      string `yaml:"owner"`
	Name       string `yaml:"name"`
	OwnAccount bool   `yaml:"own_account"`
}

// named is named.yaml.
var named = mustDecode[struct {
	Repositories []string            `yaml:"repositories"`
	Owners       []string            `yaml:"owners"`
	OwnerOnly    []string            `yaml:"owner_only"`
	Others       []string            `yaml:"others"`
	Reference    []string            `yaml:"reference"`
	Search       map[string][]string `yaml:"search"`
	Members      members             `yaml:"members"`
	OwnMembers   map[string]members  `yaml:"own_members"`
	Bodies       []string            `yaml:"bodies"`
	Targets      map[string]target   `yaml:"targets"`
	Hosts        map[string][]string `yaml:"hosts"`
	Suffixes     []string            `yaml:"suffixes"`
}]("named.yaml")

// members are members of bodies that name repositories.
type members struct {
	IDs    []string `yaml:"ids"`
	Names  []string `yaml:"names"`
	Owners []string `yaml:"owners"`
	Lists  []string `yaml:"lists"`
	Heads  []string `yaml:"heads"`
}

// NamesInBody reports whether the body of a call may name repositories.
func (m *Match) NamesInBody() bool {
	op := m.Operation
	_, hasTarget := named.Targets[op.ID]
	_, hasOwn := named.OwnMembers[op.ID]
	return !op.Safe() && op.Known() && op.Resource != GraphQL &&
		(hasTarget || hasOwn || slices.Contains(named.Bodies, op.ID) || !belowAny(op.Path, named.Repositories))
}

// Named returns what a call names in its target and in its body, and what it may reach besides. Callers pass no body if NamesInBody
// reports false. The error is a [*ScopeError] for names that cannot be read, or an error of nameOf.
func (m *Match) Named(body []byte, nameOf NameOf) (Named, error) {
	n := naming{match: m, nameOf: nameOf}
	op := m.Operation
	switch {
	case !op.Known():
		n.unknown()
	case belowAny(op.Path, named.Repositories):
		n.parameters(m.Params)
		n.query()
	case belowAny(op.Path, named.Owners) && len(m.Params) > 0:
		n.owner(m.Params[0])
		n.parameters(m.Params[1:])
		if len(n.Repositories) == 0 && (!op.Safe() || !slices.Contains(named.OwnerOnly, op.Path)) {
			n.Wide = slices.Clone(n.Owners)
		}
	default:
		n.parameters(m.Params)
		if !matchesAny(named.Reference, op) {
			n.Others = "it names no repository"
		}
	}
	if matchesAny(named.Others, op) {
		n.Others = "it may reach repositories that it does not name"
	}
	if qualifiers, ok := named.Search[op.ID]; ok {
		n.Others = ""
		n.search(qualifiers)
	}
	if m.NamesInBody() {
		n.body(body)
	}
	return n.Named, n.err
}

// matchesAny reports whether a pattern of a list matches an operation.
func matchesAny(patterns []string, op *Operation) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return Glob(pattern, op.ID) })
}

// belowAny reports whether a template is one of some templates, or below it.
func belowAny(path string, templates []string) bool {
	return slices.ContainsFunc(templates, func(t string) bool { return within(path, t) })
}

// naming collects the names of a call.
type naming struct {
	Named
	match  *Match
	nameOf NameOf
	ids    int
	err    error // the first error
}

// MaxLookUps bounds the numbers, and the names that the upstream follows, in one call, because each may need a request.
const MaxLookUps = 100

func (n *naming) fail(format string, arguments ...any) {
	if n.err == nil {
		n.err = scopeErrorf(format, arguments...)
	}
}

// nameFor returns the name behind a number, or an empty string after an error.
func (n *naming) nameFor(kind IDs, id string) string {
	if n.ids++; n.ids > MaxLookUps {
		n.fail("it names more than %d numbers; send several requests", MaxLookUps)
	}
	if n.err != nil {
		return ""
	}
	if !isInteger(id) || len(id) > 19 {
		n.fail("%.50q is not the number of a repository", id)
		return ""
	}
	name, err := n.nameOf(kind, id)
	if err != nil {
		n.err = err
		return ""
	}
	name = lower(name)
	if valid := kind == RepositoryIDs && isFullName(name) || kind != RepositoryIDs && isOwner(name); !valid {
		n.err = errNumber(id)
		return ""
	}
	n.numbered = append(n.numbered, numberedName{kind, id, name})
	return name
}

func (n *naming) repositoryID(id string) {
	if name := n.nameFor(RepositoryIDs, id); n.err == nil {
		n.repository(name)
	}
}

func isFullName(name string) bool {
	owner, base, ok := strings.Cut(name, "/")
	return ok && isOwner(owner) && isRepository(base)
}

// repository adds a repository by its name.
func (n *naming) repository(name string) {
	name = lower(name)
	owner, base, ok := strings.Cut(name, "/")
	switch { // the other part may be the name behind a number
	case !ok, !isRepository(base) && isOwner(owner):
		n.fail("%.150q is not the name of a repository", cmp.Or(base, name))
		return
	case !isOwner(owner):
		n.fail("%.100q is not the name of an organization or a user", owner)
		return
	}
	n.Repositories = append(n.Repositories, name)
}

var (
	ownerName      = regexp.MustCompile(`^[a-zA-Z0-9_-]+(\[bot\])?$`)
	repositoryText = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)
)

func isOwner(name string) bool      { return ownerName.MatchString(name) }
func isRepository(name string) bool { return repositoryText.MatchString(name) }

// owner adds the owner in the first parameter of a path.
func (n *naming) owner(p Param) {
	login := lower(p.Value)
	switch p.Name {
	case "organization_id":
		login = n.nameFor(OrganizationIDs, p.Value)
	case "user_id", "account_id":
		login = n.nameFor(UserIDs, p.Value)
	}
	if n.err == nil && !isOwner(login) {
		n.fail("%.100q is not the name of an organization or a user", login)
	}
	n.Owners = append(n.Owners, login)
}

// parameters adds the names in the parameters of a path.
func (n *naming) parameters(params Params) {
	owner := ""
	for _, p := range params {
		switch p.Name {
		case "owner", "template_owner", "repo_owner":
			owner = p.Value
		case "repo", "template_repo":
			n.repository(owner + "/" + p.Value)
		case "repo_name":
			if owner != "" { // of a variant analysis
				n.repository(owner + "/" + p.Value)
			}
		case "repository_id":
			n.repositoryID(p.Value)
		case "org":
			n.Owners = append(n.Owners, lower(p.Value))
		case "base", "head", "basehead", "ref":
			for ref := range strings.SplitSeq(p.Value, "...") {
				n.head(ref)
			}
		}
	}
}

// query adds the repositories of refs in the query.
func (n *naming) query() {
	values, _ := url.ParseQuery(n.match.Query) // a canonical query has no errors
	for _, ref := range slices.Concat(values["ref"], values["sha"]) {
		n.head(ref)
	}
}

// head adds the repository of a ref such as OWNER:BRANCH or OWNER:NAME:BRANCH, which leads to a fork.
func (n *naming) head(ref string) {
	parts := strings.Split(ref, ":")
	switch len(parts) {
	case 1:
	case 2:
		if owner := lower(parts[0]); owner != n.ownerOfPath() {
			n.Whole = append(n.Whole, owner)
		}
	case 3:
		n.repository(parts[0] + "/" + parts[1])
	default:
		n.fail("%.100q is not a branch", ref)
	}
}

// ownerOfPath returns the owner of the first repository, or the first owner.
func (n *naming) ownerOfPath() string {
	if len(n.Repositories) > 0 {
		owner, _, _ := strings.Cut(n.Repositories[0], "/")
		return owner
	}
	if len(n.Owners) > 0 {
		return n.Owners[0]
	}
	return ""
}

// unknown adds the repository of a route outside the catalogue. Other such routes may reach anything.
func (n *naming) unknown() {
	n.Others = "the route is not in the catalogue"
	segments := strings.Split(strings.TrimPrefix(n.match.Path, "/"), "/")
	switch {
	case segments[0] == "repos" && len(segments) > 2:
		n.repository(unescape(segments[1]) + "/" + unescape(segments[2]))
	case segments[0] == "repositories" && len(segments) > 1:
		n.repositoryID(unescape(segments[1]))
	default:
		n.fail("the route is not in the catalogue and names no repository")
	}
}

// body adds the names in a body. A body that cannot be read may name anything.
func (n *naming) body(body []byte) {
	if n.match.Query != "" {
		n.fail("its query may replace members of the body; send them in the body")
	}
	if n.err != nil {
		return
	}
	top, own := map[string]string{}, named.OwnMembers[n.match.Operation.ID]
	if len(bytes.TrimSpace(body)) > 0 {
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		err := readMembers(d, "", 0, func(name, value string, depth int) {
			if depth == 1 {
				top[name] = value
			}
			n.member(&named.Members, name, value)
			n.member(&own, name, value)
		})
		if err == nil {
			if _, end := d.Token(); end != io.EOF {
				err = errUnreadable
			}
		}
		if err != nil {
			n.fail("its body cannot be read: send one JSON value without repeated members, at most 1 MiB")
		}
	}
	if t, ok := named.Targets[n.match.Operation.ID]; ok && n.err == nil {
		n.target(t, top)
	}
}

// readMembers passes the simple values of a JSON value to visit, with the name of their member. Elements of an array have the name
// of the array.
func readMembers(d *json.Decoder, name string, depth int, visit func(name, value string, depth int)) error {
	token, err := d.Token()
	if err != nil || depth > 50 {
		return errUnreadable
	}
	switch v := token.(type) {
	case json.Delim:
		seen := map[string]bool{}
		for d.More() {
			if v == '{' {
				key, err := d.Token()
				if err != nil {
					return errUnreadable
				}
				if name = key.(string); seen[name] {
					return errUnreadable
				}
				seen[name] = true
			}
			if err := readMembers(d, name, depth+1, visit); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return errUnreadable
		}
	case string:
		visit(name, v, depth)
	case json.Number:
		visit(name, v.String(), depth)
	}
	return nil
}

// member adds the names in a member of the body.
func (n *naming) member(m *members, name, value string) {
	switch {
	case slices.Contains(m.IDs, name):
		n.repositoryID(value)
	case slices.Contains(m.Names, name) && value != "":
		if owner := n.ownerOfPath(); !strings.Contains(value, "/") && owner != "" {
			value = owner + "/" + value
		}
		n.repository(value)
	case slices.Contains(m.Owners, name):
		n.Whole = append(n.Whole, lower(value))
	case slices.Contains(m.Lists, name):
		n.Others = "the gateway does not know the repository behind " + name
	case slices.Contains(m.Heads, name):
		n.head(value)
	}
}

// target adds the repository that an operation makes, moves or adds.
func (n *naming) target(t target, top map[string]string) {
	owner, base := n.ownerOfPath(), ""
	if len(n.Repositories) > 0 {
		_, base, _ = strings.Cut(n.Repositories[0], "/")
	}
	if t.Owner != "" && top[t.Owner] != "" {
		owner = top[t.Owner]
	} else if t.OwnAccount {
		n.Others = "without " + t.Owner + " in the body, its target is the account of the credential"
		return
	}
	if top[t.Name] != "" {
		base = top[t.Name]
	}
	if base != "" {
		n.repository(owner + "/" + base)
		n.Wide = nil // the target is the only repository
	}
}

// NamedByFile returns the names in the path of a host that serves files. The result is false for a host without a credential
// whose paths name no repository. Without a known form of its paths, a host with a credential may serve any repository.
func NamedByFile(escapedPath string, credential bool, hosts ...string) (Named, bool, error) {
	at := slices.IndexFunc(hosts, ServesRepositories)
	n := naming{}
	if at < 0 {
		if credential {
			n.fail("the gateway cannot see the repository in paths of the host %.100q, which gets a credential", hosts[0])
		}
		return n.Named, credential, n.err
	}
	path, err := url.PathUnescape(escapedPath)
	segments := strings.Split(path, "/")
	if err != nil || slices.ContainsFunc(segments, func(s string) bool { return s == "." || s == ".." || strings.Contains(s, `\`) }) {
		n.fail("its path cannot be read")
		return n.Named, true, n.err
	}
	templates := named.Hosts[lower(hosts[at])]
	fixed := func(template string) bool {
		first := strings.Split(template, "/")[1]
		return first != ownerSegment && len(segments) > 1 && strings.EqualFold(first, segments[1])
	}
	isFixed := slices.ContainsFunc(templates, fixed)
	for _, template := range templates {
		if name, ok := fileName(template, segments); ok && fixed(template) == isFixed {
			n.repository(name)
			return n.Named, true, n.err
		}
	}
	n.fail("its path does not begin with %s", strings.Join(templates, " or "))
	return n.Named, true, n.err
}

// The variable segments of a path in named.Hosts.
const (
	ownerSegment = "OWNER"
	nameSegment  = "NAME"
)

// fileName returns the OWNER/NAME of a path that begins with a template.
func fileName(template string, segments []string) (string, bool) {
	owner, base := "", ""
	parts := strings.Split(template, "/")
	if len(segments) < len(parts) {
		return "", false
	}
	for i, part := range parts {
		switch {
		case part == ownerSegment:
			owner = segments[i]
		case part == nameSegment:
			base = segments[i]
		case !strings.EqualFold(part, segments[i]):
			return "", false
		}
	}
	return owner + "/" + base, true
}

// ServesRepositories reports whether a host of files has paths that name a repository.
func ServesRepositories(host string) bool { return len(named.Hosts[lower(host)]) > 0 }
