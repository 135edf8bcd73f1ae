package deploy

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/encoding/protojson"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// makeRelease builds a release of a checkout, signs it, and copies the release to a folder. The release has only two
// platforms, because the archives for Windows differ from all other archives.
func makeRelease(t *testing.T, checkout, out, key string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-C", checkout, "-s", "release", "VERSION=v9.8.7-test", "COMMIT="+commit, "EPOCH=1700000000", "PLATFORMS=linux/amd64 windows/amd64", "SIGN="+key)
	output, err := cmd.CombinedOutput()
	stopIf(t, err != nil, "make release: %v\n%s", err, output)
	must(t, os.CopyFS(out, os.DirFS(filepath.Join(checkout, "bin/release"))))
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
			b = bytes.Replace(b, []byte("\n## "), []byte("\n## 9.8.7-test, 2023-11-14\n\n### Added\n\n- A test.\n\n## "), 1)
		}
		writeFile(t, folder, name, string(b))
	}
	return folder
}

// unpack returns the files of an archive by path.
func unpack(t *testing.T, path string) map[string][]byte {
	t.Helper()
	b := readBytes(t, path)
	files := map[string][]byte{}
	if strings.HasSuffix(path, ".zip") {
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		must(t, err)
		for _, f := range z.File {
			r, err := f.Open()
			must(t, err)
			files[f.Name], err = io.ReadAll(r)
			must(t, err)
		}
		return files
	}
	g, err := gzip.NewReader(bytes.NewReader(b))
	must(t, err)
	for a := tar.NewReader(g); ; {
		h, err := a.Next()
		if err == io.EOF {
			return files
		}
		must(t, err)
		files[h.Name], err = io.ReadAll(a)
		must(t, err)
	}
}

func TestReleaseIsReproducibleAndComplete(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	key := filepath.Join(t.TempDir(), "key")
	runTool(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	makeRelease(t, copyCheckout(t), first, key)
	makeRelease(t, copyCheckout(t), second, key)
	var names []string
	entries, err := os.ReadDir(first)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
		failIf(t, !bytes.Equal(readBytes(t, filepath.Join(first, e.Name())), readBytes(t, filepath.Join(second, e.Name()))), "%s differs between two builds", e.Name())
	}
	want := []string{
		"NOTES.md", "SHA256SUMS", "SHA256SUMS.sig", "provenance.json", "weir_9.8.7-test_linux_amd64.cdx.json", "weir_9.8.7-test_linux_amd64.tar.gz",
		"weir_9.8.7-test_windows_amd64.cdx.json", "weir_9.8.7-test_windows_amd64.zip",
	}
	stopIf(t, !slices.Equal(names, want), "got the files %v, want %v", names, want)
	checkDocumentedVerification(t, first, key, len(want)-2)
	checkProvenance(t, first)
	notes := readBytes(t, filepath.Join(first, "NOTES.md"))
	failIf(t, string(notes) != "### Added\n\n- A test.\n", "got the notes %q", notes)
	linux := unpack(t, filepath.Join(first, want[5]))
	windows := unpack(t, filepath.Join(first, want[7]))
	for _, path := range []string{"LICENSE", "THIRD_PARTY_LICENSES", "README.md", "CHANGELOG.md", "configs/github.yaml", "deploy/systemd/weir.service", "man/weir.1", "completion/weir.bash", "completion/_weir", "completion/weir.fish"} {
		failIf(t, len(linux["weir_9.8.7-test_linux_amd64/"+path]) == 0 || len(windows["weir_9.8.7-test_windows_amd64/"+path]) == 0, "an archive has no %s", path)
	}
	failIf(t, !bytes.HasPrefix(windows["weir_9.8.7-test_windows_amd64/weir.exe"], []byte("MZ")), "weir.exe is not a Windows program")
	binary := writeFile(t, t.TempDir(), "weir", string(linux["weir_9.8.7-test_linux_amd64/weir"]))
	if runtime.GOOS == "linux" && runtime.GOARCH == "amd64" {
		got := runTool(t, binary, "version")
		failIf(t, !strings.HasPrefix(got, "weir v9.8.7-test go1.") || !strings.HasSuffix(got, " commit "+commit+"\n"), "got the version %q, want weir v9.8.7-test with the commit", got)
	}
	checkSBOM(t, filepath.Join(first, want[4]), binary)
	checkLicences(t, string(linux["weir_9.8.7-test_linux_amd64/THIRD_PARTY_LICENSES"]), binary)
}

// checkDocumentedVerification runs the commands that SECURITY.md gives for the verification of a release. Afterwards
// a changed archive and a changed list of checksums must fail.
func checkDocumentedVerification(t *testing.T, release, key string, files int) {
	t.Helper()
	_, section, found := strings.Cut(readFile(t, "SECURITY.md"), "\n## Verify a release\n")
	_, section, fenced := strings.Cut(section, "\n```sh\n")
	script, _, closed := strings.Cut(section, "\n```\n")
	stopIf(t, !found || !fenced || !closed, "SECURITY.md has no section Verify a release with commands")
	public := strings.Fields(runTool(t, "ssh-keygen", "-y", "-f", key))
	script = strings.ReplaceAll(script, "ssh-ed25519 AAAA...", public[0]+" "+public[1])
	verify := func(folder string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", script)
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for change, name := range map[string]string{"": "", "a changed archive": "weir_9.8.7-test_windows_amd64.zip", "changed checksums": "SHA256SUMS", "a changed statement": "provenance.json"} {
		folder := t.TempDir()
		must(t, os.CopyFS(folder, os.DirFS(release)))
		if change != "" {
			writeFile(t, folder, name, string(readBytes(t, filepath.Join(folder, name)))+"\n")
		}
		out, err := verify(folder)
		switch {
		case change != "" && err == nil:
			t.Errorf("%s passes the verification:\n%s", change, out)
		case change == "" && (err != nil || !strings.Contains(out, `Good "file" signature`) || strings.Count(out, ": OK\n") != files):
			t.Errorf("the verification of %d files: %v\n%s", files, err, out)
		}
	}
}

// checkProvenance decodes provenance.json without unknown fields, and compares its subjects with the files.
func checkProvenance(t *testing.T, folder string) {
	t.Helper()
	b := readBytes(t, filepath.Join(folder, "provenance.json"))
	var statement intoto.Statement
	if err := protojson.Unmarshal(b, &statement); err != nil {
		t.Fatalf("provenance.json is not a statement of in-toto: %v", err)
	}
	if err := statement.Validate(); err != nil {
		t.Errorf("provenance.json: %v", err)
	}
	predicate, err := statement.GetPredicate().MarshalJSON()
	must(t, err)
	var provenance slsa.Provenance
	if err := protojson.Unmarshal(predicate, &provenance); err != nil {
		t.Fatalf("the predicate is not SLSA provenance: %v", err)
	}
	if err := provenance.Validate(); err != nil {
		t.Errorf("the predicate: %v", err)
	}
	got := provenance.GetBuildDefinition().GetResolvedDependencies()
	failIf(t, len(got) != 1 || got[0].GetDigest()["gitCommit"] != commit, "got the sources %v, want the commit %s", got, commit)
	for _, s := range statement.GetSubject() {
		if sum := strings.Fields(runTool(t, "sha256sum", filepath.Join(folder, s.GetName())))[0]; s.GetDigest()["sha256"] != sum {
			t.Errorf("the subject %s has the digest %v, the file has %s", s.GetName(), s.GetDigest(), sum)
		}
	}
	failIf(t, len(statement.GetSubject()) != 5, "got %d subjects, want 5: two archives, two SBOMs and the notes", len(statement.GetSubject()))
}

// linkedModules returns the version of each module of a binary.
func linkedModules(t *testing.T, binary string) map[string]string {
	t.Helper()
	info, err := buildinfo.ReadFile(binary)
	must(t, err)
	modules := map[string]string{}
	for _, m := range info.Deps {
		modules[m.Path] = m.Version
	}
	return modules
}

// checkLicences compares the sections of THIRD_PARTY_LICENSES with the module list of the binary.
func checkLicences(t *testing.T, text, binary string) {
	t.Helper()
	modules := append(slices.Collect(maps.Keys(linkedModules(t, binary))), "stdlib")
	sections := regexp.MustCompile(`(?m)^=+$`).Split(text, -1)[1:]
	failIf(t, len(sections) != len(modules), "THIRD_PARTY_LICENSES has %d sections, want %d", len(sections), len(modules))
	for _, m := range modules {
		i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, "\n"+m+": ") })
		failIf(t, i < 0 || !regexp.MustCompile(`(?i)copyright|creative commons`).MatchString(sections[i]), "the licence of %s is missing", m)
	}
}

// checkSBOM compares an SBOM with the schema of CycloneDX, and with the module list of the binary.
func checkSBOM(t *testing.T, path, binary string) {
	t.Helper()
	b := readBytes(t, path)
	folder := strings.TrimSpace(runTool(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go")) + "/schema/"
	c := jsonschema.NewCompiler()
	for url, name := range map[string]string{"spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json", "bom-1.6.schema.json": "bom-1.6.schema.json"} {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(readBytes(t, folder+name)))
		must(t, err)
		must(t, c.AddResource("http://cyclonedx.org/schema/"+url, document))
	}
	schema, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	must(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	must(t, err)
	if err := schema.Validate(document); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	var bom cyclonedx.BOM
	must(t, json.Unmarshal(b, &bom))
	hashes := *bom.Metadata.Component.Hashes
	sum := strings.Fields(runTool(t, "sha256sum", binary))[0]
	failIf(t, hashes[0].Value != sum, "%s: got the hash %s, the binary has %s", path, hashes[0].Value, sum)
	listed := map[string]bool{}
	for _, part := range *bom.Components {
		failIf(t, part.Licenses == nil || len(*part.Licenses) != 1 || (*part.Licenses)[0].Expression == "", "the component %s has no licence", part.Name)
		listed[part.Name+" "+part.Version] = true
	}
	linked := linkedModules(t, binary)
	for module, version := range linked {
		failIf(t, !listed[module+" "+version], "the module %s %s is linked, but not in the SBOM", module, version)
	}
	if len(linked) < 20 || len(listed) != len(linked)+1 || !strings.Contains(string(b), "pkg:golang/stdlib@1.") {
		t.Errorf("%d modules are linked, but the SBOM lists %d components; want one more, for Go", len(linked), len(listed))
	}
}
