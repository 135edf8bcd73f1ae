package service

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

func TestHostsAreChosenByName(t *testing.T) {
	s := newTester(t, Config{})
	const readme = "/acme/widgets/main/README.md"
	for _, c := range []struct {
		as, request string
		status      int
		want        string
	}{
		{"owner", "GET https://api.example.com/repos/acme/widgets/contents/README.md", 200, `{"download_url":"https://raw.example.com` + readme + `"}`},
		{"owner", "GET https://api.example.com/repos/acme/widgets/tarball/main", 302, "Location: https://codeload.example.com/acme/widgets/legacy.tar.gz/..."},
		{"owner", "GET https://api.example.com/repos/acme/widgets/actions/artifacts/1/zip", 302, "Location: https://objects.example.com/repos/acme/widgets/actions/artifacts/1/zip"},
		{"", "GET https://objects.example.com/repos/acme/widgets/actions/artifacts/1/zip", 200, "Content-Type: application/octet-stream"},
		{"", "GET https://raw.example.com" + readme, 200, "X-Ratelimit-Limit:\nCache-Control: max-age=300"},
		{"", "GET https://raw.example.com/acme/widgets/refs/heads/main/README.md", 200, ""},
		{"", "GET https://raw.example.com/acme/widgets/main/missing", 404, ""},
		{"", "GET https://raw.example.com/acme/secret/main/vault.go", 404, ""},
		{"outsider", "GET https://raw.example.com/acme/secret/main/vault.go", 404, ""},
		{"member", "GET https://raw.example.com/acme/secret/main/vault.go", 200, ""},
		{"", "GET https://codeload.example.com/acme/secret/zip/main", 404, ""},
		{"", "GET https://codeload.example.com/acme/widgets/rar/main", 404, ""},
		{"", "GET https://github.example.com/acme/widgets.git/info/refs?service=git-upload-pack", 403, ""},
		{"", "GET https://github.example.com/acme/secret/info/refs?service=git-upload-pack", 401, `Www-Authenticate: Basic realm="GitHub"`},
		{"outsider", "POST https://github.example.com/acme/secret.git/git-upload-pack 0000", 404, ""},
		{"owner", "GET https://uploads.example.com/repos/acme/widgets", 404, ""},
	} {
		s.Call(t, c.as, c.request, c.status, c.want)
	}
}

// TestUploadsUseTheLimitsOfTheAPI follows the upload URL of a release.
func TestUploadsUseTheLimitsOfTheAPI(t *testing.T) {
	s := newTester(t, Config{})
	var release struct {
		Upload string `json:"upload_url"`
	}
	_ = json.Unmarshal(s.Do("owner", `POST https://api.example.com/repos/acme/widgets/releases {"tag_name":"v9"}`).Body.Bytes(), &release)
	target, _, _ := strings.Cut(release.Upload, "{")
	stopIf(t, !strings.HasPrefix(target, "https://uploads.example.com/repos/acme/widgets/releases/"), "got upload_url %q", release.Upload)
	s.Call(t, "owner", "POST "+target+"?name=a.zip content", 201, "X-Ratelimit-Used: 2")
}

func TestArchivesHaveAllFiles(t *testing.T) {
	s := newTester(t, Config{})
	want := map[string]string{}
	g := s.world.repo("acme", "widgets").git
	for path, sha := range g.files(g.resolve("main")) {
		want[path] = g.blobs[sha]
	}
	check := func(format string, got map[string]string) {
		t.Helper()
		failIf(t, len(got) != len(want), "%s: got %d files, want %d", format, len(got), len(want))
		for path, content := range got {
			_, below, _ := strings.Cut(path, "/")
			failIf(t, want[below] != content, "%s: %s: got %q", format, path, content)
		}
	}
	read := func(r io.Reader) string { return string(testservers.Must(io.ReadAll(r))) }
	get := func(format string) []byte {
		w := s.Do("", "GET https://codeload.example.com/acme/widgets/"+format+"/refs/heads/main")
		stopIf(t, w.Code != http.StatusOK, "%s: status %d", format, w.Code)
		s.Call(t, "\nIf-None-Match: "+w.Header().Get("Etag"), "GET https://codeload.example.com/acme/widgets/"+format+"/refs/heads/main", 304, "")
		return w.Body.Bytes()
	}
	files := map[string]string{}
	body := get("zip")
	for _, f := range testservers.Must(zip.NewReader(bytes.NewReader(body), int64(len(body)))).File {
		files[f.Name] = read(testservers.Must(f.Open()))
	}
	check("zip", files)
	files = map[string]string{}
	tarball := tar.NewReader(testservers.Must(gzip.NewReader(bytes.NewReader(get("legacy.tar.gz")))))
	for header, err := tarball.Next(); err == nil; header, err = tarball.Next() {
		files[header.Name] = read(tarball)
	}
	check("tar.gz", files)
}
