package service

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// The API has neighbors: hosts for uploads, files, archives and Git, whose names differ only in the first label, as in
// api.localhost and uploads.localhost. Only uploads count against the limits.

// serveHost serves a request for a host beside the API, and reports whether it is one.
func (s *Service) serveHost(w http.ResponseWriter, r *http.Request) bool {
	label, domain, _ := strings.Cut(r.Host, ".")
	switch {
	case label == "uploads":
		r.Host = "api." + domain // URLs in responses are those of the API
		if op := s.Match(r.Method, r.URL.EscapedPath()); op == nil || op.ID != "repos/upload-release-asset" {
			writeJSON(w, http.StatusNotFound, problemBody{Message: "Not Found"})
			return true
		}
		s.quirks.Serve(w, r, s.serve)
	case label == "raw":
		s.serveFile(w, r, rawFile)
	case label == "codeload":
		s.serveFile(w, r, archive)
	case label == "objects":
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.WriteString(w, "content of "+r.URL.Path+"\n") // the client may be gone
	case label == "github" && gitPath.MatchString(r.URL.Path):
		s.refuseGit(w, r)
	default:
		return false
	}
	return true
}

// on returns the base URL of a host beside the API, or the default if the client did not call the API by its name.
func (r *request) on(label, or string) string {
	scheme, host, _ := strings.Cut(r.base, "://")
	if domain, ok := strings.CutPrefix(host, "api."); ok {
		return scheme + "://" + label + "." + domain
	}
	return or
}

// download returns the URL of the file to which an operation redirects.
func (r *request) download() string {
	if format, ok := map[string]string{"repos/download-tarball-archive": "legacy.tar.gz", "repos/download-zipball-archive": "legacy.zip"}[r.op.ID]; ok {
		if base := r.on("codeload", ""); base != "" {
			return base + "/" + r.repo.fullName() + "/" + format + "/" + r.repo.git.resolve(r.params["ref"])
		}
	}
	return r.on("objects", downloads) + r.path
}

// serveFile serves GET /{owner}/{repo}/{...} of a host with files. A private repository needs the token of a member.
func (s *Service) serveFile(w http.ResponseWriter, r *http.Request, of func(g *git, rest []string) (name string, content []byte)) {
	name, content := s.file(r, of)
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	if content == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "404: Not Found") // the client may be gone
		return
	}
	h.Set("Cache-Control", "max-age=300")
	h.Set("Etag", s.entityTag(&request{Request: r}, &response{text: content}))
	if name != "" {
		h.Set("Content-Type", "application/x-gzip")
		h.Set("Content-Disposition", "attachment; filename="+name)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// file returns the content of a file, and its name for a download.
func (s *Service) file(r *http.Request, of func(g *git, rest []string) (string, []byte)) (name string, content []byte) {
	segments, ok := decodePath(r.URL.EscapedPath())
	if !ok || !isRead(r.Method) || len(segments) < 4 {
		return "", nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	repo, _ := s.visibleRepo(r, segments[0], segments[1])
	if repo == nil {
		return "", nil
	}
	if name, content = of(repo.git, segments[2:]); name != "" {
		name = repo.owner.login + "-" + repo.name + "-" + name
	}
	return name, content
}

// visibleRepo returns a repository, or nil if the caller cannot see it, and whether the request has a known credential.
func (s *Service) visibleRepo(r *http.Request, owner, name string) (repo *repository, known bool) {
	c, ok := s.authenticate(r)
	if !ok {
		return nil, false
	}
	if repo = s.world.repo(owner, name); repo != nil && !s.world.isVisible(repo, c) {
		repo = nil
	}
	return repo, c.kind != policy.Unauthenticated
}

// rawFile returns the file with a ref and a path. A ref may have slashes.
func rawFile(g *git, rest []string) (string, []byte) {
	for n := 1; n < len(rest); n++ {
		files := g.files(g.resolve(strings.Join(rest[:n], "/")))
		if sha, ok := files[strings.Join(rest[n:], "/")]; ok {
			return "", []byte(g.blobs[sha])
		}
	}
	return "", nil
}

// archive returns all files of a ref, in the format that precedes the ref.
func archive(g *git, rest []string) (string, []byte) {
	sha, format := g.resolve(strings.Join(rest[1:], "/")), strings.TrimPrefix(rest[0], "legacy.")
	files := g.files(sha)
	if files == nil || format != "zip" && format != "tar.gz" {
		return "", nil
	}
	var b bytes.Buffer
	compressed := gzip.NewWriter(&b)
	tarball, zipball := tar.NewWriter(compressed), zip.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		content := []byte(g.blobs[files[path]])
		if format == "zip" {
			file, _ := zipball.Create(sha + "/" + path) // a buffer returns no error
			_, _ = file.Write(content)
			continue
		}
		_ = tarball.WriteHeader(&tar.Header{Name: sha + "/" + path, Mode: 0o644, Size: int64(len(content))})
		_, _ = tarball.Write(content)
	}
	if format == "zip" {
		_ = zipball.Close()
	} else {
		_ = tarball.Close()
		_ = compressed.Close()
	}
	return sha + "." + format, b.Bytes()
}

var gitPath = regexp.MustCompile(`^/[^/]+/[^/]+/(info/refs|git-upload-pack|git-receive-pack)$`)

// refuseGit refuses Git over HTTPS, which the service does not serve.
func (s *Service) refuseGit(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(r.URL.Path, "/")
	s.mu.Lock()
	repo, known := s.visibleRepo(r, path[1], strings.TrimSuffix(path[2], ".git"))
	s.mu.Unlock()
	switch {
	case repo != nil:
		http.Error(w, "The reference service does not serve Git.", http.StatusForbidden)
	case known:
		http.Error(w, "Repository not found.", http.StatusNotFound)
	default:
		w.Header().Set("Www-Authenticate", `Basic realm="GitHub"`)
		http.Error(w, "Repository not found.", http.StatusUnauthorized)
	}
}
