package service

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// gitTag is an annotated tag object. It never changes, and is no reference.
type gitTag struct {
	sha     string
	name    string
	message string
	// target is the name of the object that is tagged, kind its type.
	target, kind string
	tagger       signer
	// reason is why the signature is or is not valid (Document A section 2.8);
	// signature is empty without one.
	reason, signature string
	// created is when it was made here, whatever the tagger says.
	created time.Time
}

type signer struct {
	name, email string
	at          time.Time
}

// newTag returns a tag object that is made now; its name is that which Git gives it.
func newTag(now time.Time, name, message, target, kind string, tagger signer) *gitTag {
	t := &gitTag{name: name, message: message, target: target, kind: kind, tagger: tagger, reason: "unsigned", created: now}
	if at := strings.Index(message, signatureBegin); at >= 0 {
		t.signature, t.reason = message[at:], "unknown_key" // nobody has shown a key here
		if !strings.Contains(t.signature, signatureEnd) {
			t.reason = "malformed_signature"
		}
	}
	t.sha = gitObjectName("tag", t.payload()+t.signature)
	return t
}

const signatureBegin, signatureEnd = "-----BEGIN PGP SIGNATURE-----", "-----END PGP SIGNATURE-----"

// payload is what is signed: the object as Git writes it, without the signature.
func (t *gitTag) payload() string {
	return fmt.Sprintf("object %s\ntype %s\ntag %s\ntagger %s <%s> %d +0000\n\n%s", t.target, t.kind, t.name,
		t.tagger.name, t.tagger.email, t.tagger.at.Unix(), strings.TrimSuffix(t.message, t.signature))
}

// tagObject is Document A section 2.8.
func tagObject(req *request, r *repository, t *gitTag) object {
	api := req.base + "/repos/" + r.fullName() + "/git"
	var signature, payload any
	if t.signature != "" {
		signature, payload = t.signature, t.payload()
	}
	return object{
		{"node_id", nodePrefixes["Tag"] + "_" + t.sha[:12]}, {"tag", t.name}, {"sha", t.sha}, {"url", api + "/tags/" + t.sha}, {"message", t.message},
		{"tagger", object{{"name", t.tagger.name}, {"email", t.tagger.email}, {"date", timestamp(t.tagger.at)}}},
		{"object", object{{"type", t.kind}, {"sha", t.target}, {"url", api + "/" + t.kind + "s/" + t.target}}},
		{"verification", object{{"verified", t.reason == "valid"}, {"reason", t.reason}, {"signature", signature}, {"payload", payload}}},
	}
}

// tagged finds the repository of a tag operation; one without commits has no Git
// objects (409).
func (s *Service) repositoryWithObjects(req *request) (*repository, *response) {
	r := req.target.repository
	if r.head() == "" {
		p := s.problem(http.StatusConflict, "Git Repository is empty.")
		return nil, &p
	}
	return r, nil
}

func getTag(s *Service, req *request) response {
	r, problem := s.repositoryWithObjects(req)
	if problem != nil {
		return *problem
	}
	at := slices.IndexFunc(r.tags, func(t *gitTag) bool { return t.sha == req.match.Params.Get("tag_sha") })
	if at < 0 {
		return s.notFound()
	}
	return response{status: http.StatusOK, modified: r.tags[at].created, body: tagObject(req, r, r.tags[at])}
}

// createTag makes a tag object, and no reference (Document A section 4.6).
func createTag(s *Service, req *request) response {
	r, problem := s.repositoryWithObjects(req)
	if problem != nil {
		return *problem
	}
	if r.locked {
		return s.problem(http.StatusForbidden, lockedForMigration)
	}
	var body struct {
		Tag     string      `json:"tag"`
		Message string      `json:"message"`
		Object  string      `json:"object"`
		Type    string      `json:"type"`
		Tagger  *taggerBody `json:"tagger"`
	}
	if problem := s.decode(req.body, "Tag", &body); problem != nil {
		return *problem
	}
	for _, f := range []struct{ name, value string }{{"tag", body.Tag}, {"message", body.Message}, {"object", body.Object}, {"type", body.Type}} {
		if f.value == "" {
			return s.missing("Tag", f.name)
		}
	}
	tagger := signer{name: req.caller.account, email: "noreply@example.com", at: time.Now()}
	if u := s.world.user(req.caller); u != nil {
		tagger.name, tagger.email = u.name, u.email
	}
	if t := body.Tagger; t != nil {
		var fieldErr *fieldError
		if tagger, fieldErr = t.signer(tagger.at); fieldErr != nil {
			return s.problem(http.StatusUnprocessableEntity, "Validation Failed", problemField{"Tag", fieldErr.field, fieldErr.code})
		}
	}
	switch {
	case !isRefName(body.Tag):
		return s.invalid("Tag", "tag")
	case !slices.Contains([]string{"commit", "tree", "blob"}, body.Type):
		return s.invalid("Tag", "type")
	case !r.hasObject(body.Type, body.Object):
		return s.invalid("Tag", "object")
	}
	t := newTag(time.Now(), body.Tag, body.Message, body.Object, body.Type, tagger)
	if !slices.ContainsFunc(r.tags, func(other *gitTag) bool { return other.sha == t.sha }) {
		r.tags = append(r.tags, t)
	}
	return response{status: http.StatusCreated, body: tagObject(req, r, t), location: req.base + "/repos/" + r.fullName() + "/git/tags/" + t.sha}
}

// wantedTagger is the tagger of the body (Document A section 4.6).
type taggerBody struct {
	Name  string `json:"name"`
	Email string `json:"email"`
	Date  string `json:"date"` // now unless given
}

// signer is who Git will write into the tag, or the first mistake: what is written
// stands in a line of its own, "NAME <EMAIL> SECONDS ZONE", and is read from there
// again. The year of a date, in UTC, has four digits.
func (t *taggerBody) signer(now time.Time) (signer, *fieldError) {
	for _, f := range []struct{ name, value string }{{"tagger.name", t.Name}, {"tagger.email", t.Email}} {
		switch {
		case f.value == "":
			return signer{}, missingAt(f.name)
		case strings.TrimSpace(f.value) == "" || strings.ContainsAny(f.value, "\n<>\x00"):
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

// holds reports whether the repository has a Git object of that type and name.
func (r *repository) hasObject(kind, sha string) bool {
	switch kind {
	case "commit", "tree": // each commit has a tree, which goes by its name here
		return slices.ContainsFunc(r.commits, func(c commit) bool { return c.sha == sha })
	case "blob":
		return slices.ContainsFunc(r.files, func(f file) bool { return f.sha(r) == sha })
	}
	return false
}

// isRefName reports whether refs/tags/NAME may be a ref, as git-check-ref-format has
// it.
func isRefName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	forbidden := func(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune(`~^:?*[\`, c) }
	return !strings.HasSuffix(name, ".") && !strings.Contains(name, "..") && !strings.Contains(name, "@{") && !strings.ContainsFunc(name, forbidden)
}
