package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// TestGoInstallBuildsTheModule publishes the checkout in a module proxy, which is a folder, and installs it from there.
// The other modules come from the module cache of the machine, which go.sum has verified. A proxy has no commit of a tagged version, so weir version
// prints the checksum of the module.
func TestGoInstallBuildsTheModule(t *testing.T) {
	t.Parallel()
	v := module.Version{Path: "github.com/weirgate/weir", Version: "v0.0.0-test"}
	proxy, modules, bin := t.TempDir(), t.TempDir(), t.TempDir()
	folder := filepath.Join(proxy, v.Path, "@v")
	must(t, os.MkdirAll(folder, 0o755))
	archive, err := os.Create(filepath.Join(folder, v.Version+".zip"))
	must(t, err)
	checkout := copyCheckout(t)
	must(t, zip.CreateFromDir(archive, v, checkout))
	must(t, archive.Close())
	definition := readBytes(t, filepath.Join(checkout, "go.mod"))
	for name, text := range map[string]string{"list": v.Version, v.Version + ".mod": string(definition), v.Version + ".info": fmt.Sprintf(`{"Version":%q}`, v.Version)} {
		writeFile(t, folder, name, text)
	}
	cache := strings.TrimSpace(runTool(t, "go", "env", "GOMODCACHE"))
	install := exec.CommandContext(t.Context(), "go", "install", v.Path+"/cmd/weir@"+v.Version)
	install.Dir = t.TempDir() // outside of a module, as users run it
	install.Env = append(os.Environ(), "GOPROXY=file://"+proxy+",file://"+cache+"/cache/download", "GOSUMDB=off",
		"GOMODCACHE="+modules, "GOBIN="+bin, "GOFLAGS=-modcacherw -trimpath", "CGO_ENABLED=0")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	sum, err := dirhash.HashZip(archive.Name(), dirhash.Hash1)
	must(t, err)
	if got := runTool(t, filepath.Join(bin, "weir"), "version"); !strings.HasPrefix(got, "weir "+v.Version+" go1.") || !strings.HasSuffix(got, " module "+sum+"\n") {
		t.Errorf("got the version %q, want %s and the checksum %s of the module", got, v.Version, sum)
	}
	if got := runTool(t, filepath.Join(bin, "weir"), "catalogue", "--dialect", "github", "gists/list-public"); !strings.Contains(got, "/gists/public") {
		t.Errorf("got the catalogue %q, want the operations of the embedded table", got)
	}
}

// TestBuildOfACheckoutPrintsTheCommit builds a checkout with git, without and with a change.
func TestBuildOfACheckoutPrintsTheCommit(t *testing.T) {
	t.Parallel()
	checkout := copyCheckout(t)
	git := func(args ...string) string {
		return strings.TrimSpace(runTool(t, "git", append([]string{"-C", checkout, "-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...))
	}
	build := func() string {
		binary := filepath.Join(t.TempDir(), "weir")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=true", "-o", binary, "./cmd/weir")
		cmd.Dir = checkout
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		stopIf(t, err != nil, "go build: %v\n%s", err, out)
		return runTool(t, binary, "version")
	}
	git("init", "-q")
	git("add", "-A")
	git("commit", "-q", "-m", "A commit")
	want := " commit " + git("rev-parse", "HEAD")
	if got := build(); !strings.HasPrefix(got, "weir v0.0.0-") || !strings.HasSuffix(got, want+"\n") {
		t.Errorf("got the version %q, want a pseudo-version and%s", got, want)
	}
	writeFile(t, checkout, "LICENSE", "")
	if got := build(); !strings.HasSuffix(got, want+"-dirty\n") {
		t.Errorf("got the version %q of a changed checkout, want%s-dirty", got, want)
	}
}
