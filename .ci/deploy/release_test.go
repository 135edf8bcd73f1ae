package deploy

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// makeRelease builds a release of a checkout and copies the release to a folder. The release has only two platforms,
// because the archives for Windows differ from all other archives.
func makeRelease(t *testing.T, checkout, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-C", checkout, "-s", "release", "VERSION=v9.8.7-test", "EPOCH=1700000000", "PLATFORMS=linux/amd64 windows/amd64")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, output)
	}
	if err := os.CopyFS(out, os.DirFS(filepath.Join(checkout, "bin/release"))); err != nil {
		t.Fatal(err)
	}
}

// copyCheckout copies the checkout to another folder and adds a version to its changelog.
func copyCheckout(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range strings.Fields(runTool(t, "git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard")) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // removed, but not committed yet
		}
		if name == "CHANGELOG.md" {
			b = bytes.Replace(b, []byte("\n## Unreleased"), []byte("\n## 9.8.7-test, 2023-11-14\n\n### Added\n\n- A test.\n\n## Unreleased"), 1)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// unpack returns the files of an archive by path.
func unpack(t *testing.T, path string) map[string][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	if strings.HasSuffix(path, ".zip") {
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			if files[f.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	g, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for a := tar.NewReader(g); ; {
		h, err := a.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(a); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReleaseIsReproducibleAndComplete(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	makeRelease(t, copyCheckout(t), first)
	makeRelease(t, copyCheckout(t), second)
	var names []string
	entries, err := os.ReadDir(first)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
		a, err := os.ReadFile(filepath.Join(first, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(second, e.Name())); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds, error %v", e.Name(), err)
		}
	}
	want := []string{
		"NOTES.md", "SHA256SUMS", "weir_9.8.7-test_linux_amd64.cdx.json", "weir_9.8.7-test_linux_amd64.tar.gz",
		"weir_9.8.7-test_windows_amd64.cdx.json", "weir_9.8.7-test_windows_amd64.zip",
	}
	if !slices.Equal(names, want) {
		t.Fatalf("got the files %v, want %v", names, want)
	}
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = first
	if out, err := sums.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != len(want)-1 {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	if notes, err := os.ReadFile(filepath.Join(first, "NOTES.md")); err != nil || string(notes) != "### Added\n\n- A test.\n" {
		t.Errorf("got the notes %q, error %v", notes, err)
	}
	linux := unpack(t, filepath.Join(first, want[3]))
	windows := unpack(t, filepath.Join(first, want[5]))
	for _, path := range []string{"LICENSE", "README.md", "CHANGELOG.md", "configs/github.yaml", "man/weir.1", "completion/weir.bash", "completion/_weir", "completion/weir.fish"} {
		if len(linux["weir_9.8.7-test_linux_amd64/"+path]) == 0 || len(windows["weir_9.8.7-test_windows_amd64/"+path]) == 0 {
			t.Errorf("an archive has no %s", path)
		}
	}
	if !bytes.HasPrefix(windows["weir_9.8.7-test_windows_amd64/weir.exe"], []byte("MZ")) {
		t.Error("weir.exe is not a Windows program")
	}
	binary := filepath.Join(t.TempDir(), "weir")
	if err := os.WriteFile(binary, linux["weir_9.8.7-test_linux_amd64/weir"], 0o755); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" && runtime.GOARCH == "amd64" {
		if got := runTool(t, binary, "version"); !strings.HasPrefix(got, "weir v9.8.7-test go1.") {
			t.Errorf("got the version %q, want weir v9.8.7-test", got)
		}
	}
	checkSBOM(t, filepath.Join(first, want[2]), binary)
}

// checkSBOM compares an SBOM with the schema of CycloneDX, and with the module list of the binary.
func checkSBOM(t *testing.T, path, binary string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	folder := strings.TrimSpace(runTool(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go")) + "/schema/"
	c := jsonschema.NewCompiler()
	for url, name := range map[string]string{"spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json", "bom-1.6.schema.json": "bom-1.6.schema.json"} {
		f, err := os.Open(folder + name)
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("http://cyclonedx.org/schema/"+url, document); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(document); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	var bom cyclonedx.BOM
	if err := json.Unmarshal(b, &bom); err != nil {
		t.Fatal(err)
	}
	hashes := *bom.Metadata.Component.Hashes
	if sum := strings.Fields(runTool(t, "sha256sum", binary))[0]; hashes[0].Value != sum {
		t.Errorf("%s: got the hash %s, the binary has %s", path, hashes[0].Value, sum)
	}
	listed := map[string]bool{}
	for _, part := range *bom.Components {
		listed[part.Name+" "+part.Version] = true
	}
	linked := 0
	for _, line := range strings.Split(runTool(t, "go", "version", "-m", binary), "\n") {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			linked++
			if !listed[f[1]+" "+f[2]] {
				t.Errorf("the module %s %s is linked, but not in the SBOM", f[1], f[2])
			}
		}
	}
	if linked < 20 || len(listed) != linked+1 || !strings.Contains(string(b), "pkg:golang/stdlib@1.") {
		t.Errorf("%d modules are linked, but the SBOM lists %d components; want one more, for Go", linked, len(listed))
	}
}
