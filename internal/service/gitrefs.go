package service

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// gitTag is an immutable annotated tag object, and not a reference.
type gitTag struct {
	sha     string
	name    string
	message string
	// target is the SHA of the tagged object. kind is the type of that object.
	target, kind string
	tagger       signer
	// reason is the result of the signature check (Document A section 2.8). signature is empty for unsigned tags.
	reason, signature string
	// created is the time at which the service created the tag.
	created time.Time
}

type signer struct {
	name, email string
	at          time.Time
}

// newTag returns a tag object that is created at now. The SHA of the tag equals the SHA that Git computes.
func newTag(now time.Time, name, message, target, kind string, tagger signer) *gitTag {
	t := &gitTag{name: name, message: message, target: target, kind: kind, tagger: tagger, reason: "unsigned", created: now}
	if at := strings.Index(message, signatureBegin); at >= 0 {
		t.signature, t.reason = message[at:], "unknown_key" // the service holds no keys
		if !strings.Contains(t.signature, signatureEnd) {
			t.reason = "malformed_signature"
		}
	}
	t.sha = gitObjectName("tag", t.payload()+t.signature)
	return t
}

const signatureBegin, signatureEnd = "-----BEGIN PGP SIGNATURE-----", "-----END PGP SIGNATURE-----"

// payload returns the signed text: the object in Git's format, without the signature.
func (t *gitTag) payload() string {
	return fmt.Sprintf("object %s\ntype %s\ntag %s\ntagger %s <%s> %d +0000\n\n%s", t.target, t.kind, t.name,
		t.tagger.name, t.tagger.email, t.tagger.at.Unix(), strings.TrimSuffix(t.message, t.signature))
}

// tagObject returns the tag record of Document A section 2.8.
func tagObject(req *request, r *repository, t *gitTag) object {
	api := req.base + "/repos/" + r.fullName() + "/git"
	var signature, payload any
	if t.signature != "" {
		signature, payload = t.signature, t.payload()
	}
	return object{
		{"node_id", views().NodePrefixes["Tag"] + "_" + t.sha[:12]}, {"tag", t.name}, {"sha", t.sha}, {"url", api + "/tags/" + t.sha}, {"message", t.message},
		{"tagger", object{{"name", t.tagger.name}, {"email", t.tagger.email}, {"date", timestamp(t.tagger.at)}}},
		{"object", object{{"type", t.kind}, {"sha", t.target}, {"url", api + "/" + t.kind + "s/" + t.target}}},
		{"verification", object{{"verified", t.reason == "valid"}, {"reason", t.reason}, {"signature", signature}, {"payload", payload}}},
	}
}

func getTag(_ *Service, req *request) response {
	t := first(req.repo.git.tags, func(t *gitTag) bool { return t.sha == req.params["tag_sha"] })
	if t == nil {
		return notFound()
	}
	return response{status: http.StatusOK, modified: t.created, body: tagObject(req, req.repo, t)}
}

// createTag creates a tag object without a reference (Document A section 4.6).
func createTag(s *Service, req *request) response {
	r := req.repo
	var body struct {
		Tag, Message, Object, Type string
		Tagger                     *taggerBody
	}
	if problem := readBody(req.raw, "Tag", &body); problem != nil {
		return *problem
	}
	tagger := signer{name: req.caller.account, email: "noreply@example.com", at: time.Now()}
	if u := s.world.user(req.caller); u != nil {
		tagger.name, tagger.email = u.name, u.email
	}
	if t := body.Tagger; t != nil {
		var fieldErr *fieldError
		if tagger, fieldErr = t.signer(tagger.at); fieldErr != nil {
			return *fieldErr.of("Tag")
		}
	}
	switch {
	case !isRefName(body.Tag):
		return invalid("Tag", "tag")
	case !r.hasObject(body.Type, body.Object):
		return invalid("Tag", "object")
	}
	t := newTag(time.Now(), body.Tag, body.Message, body.Object, body.Type, tagger)
	if !slices.ContainsFunc(r.git.tags, func(other *gitTag) bool { return other.sha == t.sha }) {
		r.git.tags = append(r.git.tags, t)
	}
	req.touch(req.path + "/" + t.sha)
	return response{status: http.StatusCreated, body: tagObject(req, r, t), location: req.base + "/repos/" + r.fullName() + "/git/tags/" + t.sha}
}

// taggerBody is the tagger of the body (Document A section 4.6).
type taggerBody struct{ Name, Email, Date string }

// signer returns the tagger to write into the tag, or the first invalid field. Git writes the line "NAME <EMAIL>
// SECONDS ZONE", so name and email must not contain its delimiters. The year of the date in UTC must have four digits.
func (t *taggerBody) signer(now time.Time) (signer, *fieldError) {
	for _, f := range []struct{ name, value string }{{"tagger.name", t.Name}, {"tagger.email", t.Email}} {
		if strings.TrimSpace(f.value) == "" || strings.ContainsAny(f.value, "\n<>\x00") {
			return signer{}, invalidAt(f.name)
		}
	}
	at := now
	if t.Date != "" {
		var err error
		if at, err = time.Parse(time.RFC3339, t.Date); err != nil || at.UTC().Year() < 0 || at.UTC().Year() > 9999 {
			return signer{}, invalidAt("tagger.date")
		}
	}
	return signer{strings.TrimSpace(t.Name), strings.TrimSpace(t.Email), at}, nil
}

// hasObject reports whether the repository has a Git object of the given type and name.
func (r *repository) hasObject(kind, sha string) bool {
	_, isBlob := r.git.blobs[sha]
	isCommit := r.git.commits[sha] != nil // a commit names its tree, too
	return kind == "blob" && isBlob || kind != "blob" && isCommit || kind == "tree" && r.git.trees[sha] != nil
}

// isRefName reports whether refs/tags/NAME is a valid ref (see git-check-ref-format).
func isRefName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	forbidden := func(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune(`~^:?*[\`, c) }
	return !strings.HasSuffix(name, ".") && !strings.Contains(name, "..") && !strings.Contains(name, "@{") && !strings.ContainsFunc(name, forbidden)
}

const (
	// zeroSHA is the SHA of a ref that does not exist.
	zeroSHA = "0000000000000000000000000000000000000000"
	// maxCommits is the maximum number of commits in one push. A push of this size has a payload that exceeds maxPayload.
	maxCommits = 60_000
)

// pushResult describes the effect of a push on its ref (Document B section 6.3).
type pushResult struct {
	before, after            string
	baseRef                  any       // the source of a new ref; nil for a push with commits
	commits                  []*commit // oldest first
	head                     *commit   // the ref's new target; nil for a deleted ref
	created, deleted, forced bool
}

// mainRef returns the full ref of the default branch.
func (r *repository) mainRef() string { return "refs/heads/" + r.defaultBranch }

// push applies a push to the state. The state holds only the default branch. A push to the default branch changes its
// head and discards the statistics of the old head (Document A section 3). A push to another ref changes only the time
// of the last push.
func (s *Service) push(e *event, body eventBody) error {
	r := e.repository
	n, err := r.checkPush(e.ref, body)
	if err != nil {
		return err
	}
	g, ref, head := r.git, strings.TrimPrefix(e.ref, "refs/"), r.head()
	p := &pushResult{before: cmp.Or(head, zeroSHA), after: head, created: body.Created || head == "", deleted: body.Deleted, forced: body.Forced}
	e.push, r.pushed = p, e.at
	if p.forced { // the ref's old head is removed
		p.after = ""
		if parents := g.commits[head].parents; len(parents) > 0 {
			p.after = parents[0]
		}
	}
	from := g.refs[ref]
	p.commits, p.after = s.newCommits(e, n, p.after)
	p.head, g.refs[ref] = g.commits[p.after], p.after
	maps.DeleteFunc(s.stats, func(k statisticsKey, _ any) bool { return k.repository == r.id && k.head != r.head() })
	switch {
	case p.deleted:
		delete(g.refs, ref)
		p.after, p.head = zeroSHA, nil
	case p.created && n == 0:
		p.baseRef = r.mainRef()
	}
	if p.created {
		p.before = zeroSHA
	}
	s.touchRef(e.req, ref, from, r.git.refs[ref])
	return nil
}

// checkPush returns the number of commits in a push, or an error for an invalid push.
func (r *repository) checkPush(ref string, body eventBody) (int, error) {
	toMain, empty, tag := ref == r.mainRef(), r.head() == "", strings.HasPrefix(ref, "refs/tags/")
	n := 1
	if tag || body.Deleted {
		n = 0
	}
	if body.Commits != nil {
		n = *body.Commits
	}
	left := len(r.history()) + n
	if body.Forced {
		left--
	}
	for _, check := range []struct {
		failed  bool
		message string
	}{
		{n < 0 || n > maxCommits, fmt.Sprintf("commits: %d: must be 0 to %d", n, maxCommits)},
		{n > 0 && tag, fmt.Sprintf("commits: %d: must be 0 for a tag", n)},
		{n > 0 && body.Deleted, fmt.Sprintf("commits: %d: must be 0 for a deleted ref", n)},
		{n == 0 && !body.Created && !body.Deleted && !body.Forced, "commits: 0: must be 1 or more unless created, deleted or forced is set"},
		{body.Created && body.Deleted, "deleted: cannot be combined with created"},
		{body.Forced && (body.Created || body.Deleted), "forced: cannot be combined with created or deleted"},
		{toMain && body.Deleted, fmt.Sprintf("deleted: %s is the default branch and cannot be deleted", ref)},
		{toMain && body.Created && !empty, fmt.Sprintf("created: %s already exists", ref)},
		{!toMain && empty, fmt.Sprintf("ref: %q: %s is empty; push to %s first", ref, r.fullName(), r.mainRef())},
		{body.Forced && empty, fmt.Sprintf("forced: %s is empty", r.fullName())},
		{left < 1, fmt.Sprintf("commits: 0: %s would have no commits", ref)},
	} {
		if check.failed {
			return 0, errors.New(check.message)
		}
	}
	return n, nil
}

// newCommits adds n new commits by the sender, at the time of the event, and returns them and the last SHA.
func (s *Service) newCommits(e *event, n int, head string) ([]*commit, string) {
	verbs, nouns := []string{"fix", "add", "remove", "polish"}, []string{"gear", "lever", "spring"}
	g, made := e.repository.git, make([]*commit, n)
	tree := g.treeOf(nil)
	if parent := g.commits[head]; parent != nil {
		tree = parent.tree
	}
	for i := range made {
		c := commit{
			tree: tree, sha: shaOf(e.repository.id, e.serial, i, s.config.Seed), author: e.sender, at: e.at,
			message:   verbs[i%len(verbs)] + " the " + nouns[i%len(nouns)],
			additions: 1 + i%40, deletions: i % 20,
		}
		if head != "" {
			c.parents = []string{head}
		}
		head = g.add(c)
		made[i] = g.commits[head]
	}
	return made, head
}

// commitObject returns the record of a pushed commit. The documents do not define the members of this record.
func commitObject(e *event, c *commit) object {
	by := object{{"name", c.author.name}, {"email", c.author.email}, {"username", c.author.login}}
	changed := e.repository.paths()
	return object{
		{"id", c.sha}, {"tree_id", c.tree}, {"distinct", true}, {"message", c.message}, {"timestamp", timestamp(c.at)},
		{"url", e.htmlURL() + "/commit/" + c.sha}, {"author", by}, {"committer", by},
		{"added", []string{}}, {"removed", []string{}}, {"modified", append([]string{}, changed[:min(1, len(changed))]...)},
	}
}
