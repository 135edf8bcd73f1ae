package service

import (
	"fmt"
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
		{"node_id", nodePrefixes["Tag"] + "_" + t.sha[:12]}, {"tag", t.name}, {"sha", t.sha}, {"url", api + "/tags/" + t.sha}, {"message", t.message},
		{"tagger", object{{"name", t.tagger.name}, {"email", t.tagger.email}, {"date", timestamp(t.tagger.at)}}},
		{"object", object{{"type", t.kind}, {"sha", t.target}, {"url", api + "/" + t.kind + "s/" + t.target}}},
		{"verification", object{{"verified", t.reason == "valid"}, {"reason", t.reason}, {"signature", signature}, {"payload", payload}}},
	}
}

// withObjects returns a handler that responds with 409 if the repository is empty: it has no Git objects.
func withObjects(handle handler) handler {
	return func(s *Service, req *request) response {
		if req.repo.head() == "" {
			return fail(http.StatusConflict, "Git Repository is empty.")
		}
		return handle(s, req)
	}
}

func getTag(_ *Service, req *request) response {
	r := req.repo
	at := slices.IndexFunc(r.git.tags, func(t *gitTag) bool { return t.sha == req.params["tag_sha"] })
	if at < 0 {
		return notFound()
	}
	return response{status: http.StatusOK, modified: r.git.tags[at].created, body: tagObject(req, r, r.git.tags[at])}
}

// createTag creates a tag object without a reference (Document A section 4.6).
func createTag(s *Service, req *request) response {
	r := req.repo
	if r.locked {
		return fail(http.StatusForbidden, lockedForMigration)
	}
	var body struct {
		Tag     string      `json:"tag"`
		Message string      `json:"message"`
		Object  string      `json:"object"`
		Type    string      `json:"type"`
		Tagger  *taggerBody `json:"tagger"`
	}
	if problem := s.decode(req.raw, "Tag", &body); problem != nil {
		return *problem
	}
	for _, f := range []struct{ name, value string }{{"tag", body.Tag}, {"message", body.Message}, {"object", body.Object}, {"type", body.Type}} {
		if f.value == "" {
			return missing("Tag", f.name)
		}
	}
	tagger := signer{name: req.caller.account, email: "noreply@example.com", at: time.Now()}
	if u := s.world.user(req.caller); u != nil {
		tagger.name, tagger.email = u.name, u.email
	}
	if t := body.Tagger; t != nil {
		var fieldErr *fieldError
		if tagger, fieldErr = t.signer(tagger.at); fieldErr != nil {
			return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{"Tag", fieldErr.field, fieldErr.code})
		}
	}
	switch {
	case !isRefName(body.Tag):
		return invalid("Tag", "tag")
	case !slices.Contains([]string{"commit", "tree", "blob"}, body.Type):
		return invalid("Tag", "type")
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
type taggerBody struct {
	Name  string `json:"name"`
	Email string `json:"email"`
	Date  string `json:"date"` // the default is the current time
}

// signer returns the tagger to write into the tag, or the first invalid field. Git writes the line "NAME <EMAIL>
// SECONDS ZONE", so name and email must not contain its delimiters. The year of the date in UTC must have four digits.
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
