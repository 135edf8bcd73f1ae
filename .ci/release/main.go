// Command release builds the files of a version:
//
//   - for each platform, an archive with the static binary, the licences of its modules, the manual page and completions
//   - for each platform, an SBOM of the binary (CycloneDX)
//   - provenance.json, the source and the parameters of the build (SLSA)
//   - NOTES.md, the section of the changelog
//   - SHA256SUMS, the checksums of all other files
//
// The build is reproducible: the same commit, time and Go give the same bytes on any machine.
//
//	go run -modfile=tools.mod ./.ci/release -version v0.3.0 -commit COMMIT -epoch 1700000000 -out bin/release linux/amd64 …
//
// With -licences it writes only the licences of the binary for one platform, which the image contains:
//
//	go run -modfile=tools.mod ./.ci/release -licences FILE linux/amd64
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "", "version of the build")
	commit := flag.String("commit", "", "commit of the source: 40 hexadecimal digits, followed by -dirty if the source has uncommitted changes")
	epoch := flag.Int64("epoch", 0, "modification time of all files, in Unix seconds")
	out := flag.String("out", "bin/release", "output folder; its content is replaced")
	licences := flag.String("licences", "", "write only the licences of the modules to this file")
	flag.Parse()
	r := release{version: *version, commit: *commit, at: time.Unix(*epoch, 0).UTC(), out: *out}
	err := error(nil)
	if *licences != "" {
		err = r.writeLicences(*licences, flag.Arg(0))
	} else {
		err = r.make(flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release builds one version.
type release struct {
	version string
	commit  string
	at      time.Time
	out     string
	scratch string // temporary folder
	common  []file // files of every archive
}

// file is a file of an archive.
type file struct {
	name string
	mode int64
	text []byte
}

func (r *release) make(platforms []string) (err error) {
	if !regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]*$`).MatchString(r.version) || len(platforms) == 0 {
		return fmt.Errorf("-version %q: use letters, digits, dots and dashes, and name platforms such as linux/amd64", r.version)
	}
	if !regexp.MustCompile(`^[0-9a-f]{40}(-dirty)?$`).MatchString(r.commit) {
		return fmt.Errorf("-commit %q: use the 40 digits of git rev-parse HEAD, followed by -dirty if the source has uncommitted changes", r.commit)
	}
	if r.scratch, err = os.MkdirTemp("", "release-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(r.scratch) }()
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if err := r.notes(); err != nil {
		return err
	}
	if err := r.documents(); err != nil {
		return err
	}
	for _, p := range platforms {
		if err := r.platform(p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		fmt.Println(p)
	}
	if err := r.provenance(platforms); err != nil {
		return err
	}
	return r.sums()
}

// number matches a version number; other versions are commits.
var number = regexp.MustCompile(`^v([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?)$`)

// notes writes the changelog section of a version. It returns an error if the changelog has no such section.
func (r *release) notes() error {
	m := number.FindStringSubmatch(r.version)
	if m == nil {
		return nil
	}
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	_, part, found := strings.Cut(string(changelog), "\n## "+m[1]+", ")
	if !found {
		return fmt.Errorf("CHANGELOG.md: section %q is missing", "## "+m[1]+", DATE")
	}
	_, part, _ = strings.Cut(part, "\n")
	part, _, _ = strings.Cut(part, "\n## ")
	return r.write("NOTES.md", []byte(strings.TrimSpace(part)+"\n"))
}

// documents collects the common files. The built binary prints the manual page and the completions.
func (r *release) documents() error {
	for _, pattern := range []string{"LICENSE", "README.md", "CHANGELOG.md", "configs/*.yaml", "deploy/systemd/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			return fmt.Errorf("%s: no files found, error %v", pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			r.common = append(r.common, file{filepath.ToSlash(name), 0o644, text})
		}
	}
	native := filepath.Join(r.scratch, "native")
	if err := r.build(runtime.GOOS, runtime.GOARCH, native); err != nil {
		return err
	}
	for _, d := range [][]string{{"man/weir.1", "man"}, {"completion/weir.bash", "completion", "bash"}, {"completion/_weir", "completion", "zsh"}, {"completion/weir.fish", "completion", "fish"}} {
		text, err := exec.Command(native, d[1:]...).Output()
		if err != nil {
			return fmt.Errorf("weir %v: %w", d[1:], err)
		}
		r.common = append(r.common, file{d[0], 0o644, text})
	}
	return nil
}

// environment is the environment of all go commands, besides the platform.
var environment = []string{"CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off"}

// command returns a go command for a platform.
func (r *release) command(system, machine string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Env = append(append(os.Environ(), environment...), "GOOS="+system, "GOARCH="+machine)
	cmd.Stderr = os.Stderr
	return cmd
}

// flags returns the flags of go build.
func (r *release) flags() []string {
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.release=" + r.version + " -X main.commit=" + r.commit}
}

// build builds a binary that depends only on the source, the version, the commit and Go.
func (r *release) build(system, machine, to string) error {
	return r.command(system, machine, append(append([]string{"build"}, r.flags()...), "-o", to, "./cmd/weir")...).Run()
}

func (r *release) platform(p string) error {
	system, machine, ok := strings.Cut(p, "/")
	if !ok {
		return fmt.Errorf("want SYSTEM/MACHINE, such as linux/amd64")
	}
	binary := filepath.Join(r.scratch, system+"-"+machine)
	if err := r.build(system, machine, binary); err != nil {
		return err
	}
	text, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	name := "weir_" + strings.TrimPrefix(r.version, "v") + "_" + system + "_" + machine
	program, pack, kind := "weir", r.tar, ".tar.gz"
	if system == "windows" {
		program, pack, kind = "weir.exe", r.zip, ".zip"
	}
	licences, texts, err := r.licences(system, machine)
	if err != nil {
		return err
	}
	archive, err := pack(name, append([]file{{program, 0o755, text}, {"THIRD_PARTY_LICENSES", 0o644, texts}}, r.common...))
	if err != nil {
		return err
	}
	if err := r.write(name+kind, archive); err != nil {
		return err
	}
	bill, err := r.sbom(binary, program, text, licences)
	if err != nil {
		return err
	}
	return r.write(name+".cdx.json", bill)
}

func (r *release) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), text, 0o644)
}

// digest is the SHA-256 of a file of the release.
type digest struct {
	name   string
	sha256 string
}

// digests returns the digests of all files of the release, sorted by name.
func (r *release) digests() ([]digest, error) {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var all []digest
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, digest{e.Name(), fmt.Sprintf("%x", sha256.Sum256(text))})
	}
	return all, nil
}

// sums writes SHA256SUMS, the input of sha256sum -c.
func (r *release) sums() error {
	all, err := r.digests()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, d := range all {
		fmt.Fprintf(&text, "%s  %s\n", d.sha256, d.name)
	}
	return r.write("SHA256SUMS", []byte(text.String()))
}
