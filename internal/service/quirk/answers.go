package quirk

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// tokenLife is the life of an installation token.
const tokenLife = time.Hour

// mint records a new installation token.
func (x *exchange) mint(r *response) {
	var minted struct {
		Token string `json:"token"`
	}
	if x.Method != http.MethodPost || !strings.HasSuffix(x.Path, "/access_tokens") || r.status != http.StatusCreated || json.Unmarshal(r.body, &minted) != nil {
		return
	}
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	maps.DeleteFunc(x.state.minted, func(_ string, at time.Time) bool { return x.now.Sub(at) > tokenLife })
	x.state.minted[minted.Token] = x.now
}

func (x *exchange) mintedAt() time.Time {
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	return x.state.minted[x.token()]
}

// unknownToken refuses a new installation token.
func (x *exchange) unknownToken() *response {
	if x.now.Sub(x.mintedAt()) >= time.Duration(x.set.TokenUnknownFor) {
		return nil
	}
	return []*response{
		newResponse(http.StatusUnauthorized, "Bad credentials"), newResponse(http.StatusForbidden, "Resource not accessible by integration"),
		newResponse(http.StatusNotFound, "Not Found"),
	}[x.state.UpTo(2)]
}

// oldPermissions refuses an installation token that was minted before the permission was granted.
func (x *exchange) oldPermissions() *response {
	x.state.mu.Lock()
	granted := x.state.granted
	x.state.mu.Unlock()
	isInstallation := strings.HasPrefix(x.token(), "ghs_") || x.token() == "tok-app"
	if !isInstallation && x.mintedAt().IsZero() || !x.set.PermissionSnapshot.match(x.Method, x.Path) || x.mintedAt().After(granted) {
		return nil
	}
	return newResponse(http.StatusForbidden, "Resource not accessible by integration")
}

// endedVersion refuses a version that the API no longer supports.
func (x *exchange) endedVersion() *response {
	version := x.Header.Get("X-Github-Api-Version")
	if !slices.Contains(x.set.EndedVersions, version) {
		return nil
	}
	return newResponse(http.StatusBadRequest, "API version "+version+" is no longer supported")
}

// oldName redirects a request for the former name of a repository.
func (x *exchange) oldName() *response {
	for old, name := range x.set.OldNames {
		rest, ok := strings.CutPrefix(x.Path, "/repos/"+old)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		target := *x.URL
		target.Scheme = map[bool]string{true: "https", false: "http"}[x.TLS != nil]
		target.Host, target.Path, target.RawPath = x.Host, "", ""
		r := newResponse(http.StatusMovedPermanently, "Moved Permanently")
		if x.Method != http.MethodGet && x.Method != http.MethodHead {
			r.status = http.StatusTemporaryRedirect
		}
		r.header.Set("Location", target.JoinPath("/repos/"+name+rest).String())
		return r
	}
	return nil
}

// notModified changes the validators of a 304 and of a 404.
func (x *exchange) notModified(r *response) {
	if x.Method == http.MethodGet && r.status == http.StatusNotFound && x.happens(x.set.ErrorValidators) {
		r.header.Set("Etag", errorTag)
	}
	if !x.set.ErrorValidators.isZero() && strings.Contains(x.Header.Get("If-None-Match"), errorTag) {
		r.becomeNotModified(errorTag)
	}
	if r.status != http.StatusNotModified {
		return
	}
	if x.happens(x.set.LinkMissingIn304) {
		r.header.Del("Link")
	}
	if tag := r.header.Get("Etag"); tag != "" && x.happens(x.set.ETagOtherStrength) {
		weak, isWeak := strings.CutPrefix(tag, "W/")
		if r.header.Set("Etag", "W/"+tag); isWeak {
			r.header.Set("Etag", weak)
		}
	}
	if x.happens(x.set.ETagMissingIn304) {
		r.header.Del("Etag")
	}
}

// errorTag is the ETag of all errors: it is that of their body, which is always the same.
const errorTag = `W/"64c8d5a0f1b2c3d4e5f60718293a4b5c"`

// states are members that show a finished state, and how they look before.
var states = []struct {
	finished   *regexp.Regexp
	unfinished string
}{
	{regexp.MustCompile(`"mergeable":\s*(true|false)`), `"mergeable":null`},
	{regexp.MustCompile(`"mergeable_state":\s*"[a-z]+"`), `"mergeable_state":"unknown"`},
	{regexp.MustCompile(`"status":\s*"completed"`), `"status":"queued"`},
	{regexp.MustCompile(`"conclusion":\s*"[a-z_]+"`), `"conclusion":null`},
}

// unfinished gives the representation of a finished state the form that it has before. Its ETag is another one.
func (x *exchange) unfinished(r *response) {
	if x.set.UnfinishedFor == 0 || x.Method != http.MethodGet || r.status != http.StatusOK && r.status != http.StatusNotModified {
		return
	}
	if !x.isNew(r.header.Get("Etag"), time.Duration(x.set.UnfinishedFor)) || r.status != http.StatusOK {
		return
	}
	body := r.body
	for _, state := range states {
		body = state.finished.ReplaceAll(body, []byte(state.unfinished))
	}
	if bytes.Equal(body, r.body) {
		return
	}
	tag := strings.TrimSuffix(r.header.Get("Etag"), `"`) + `-unfinished"`
	r.header.Set("Etag", tag)
	r.body = body
	if x.Header.Get("If-None-Match") == tag {
		r.becomeNotModified(tag)
	}
}
