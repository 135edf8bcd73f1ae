// Release builds what a version is handed out as, into a folder: for each platform an
// archive with the static binary, the manual page and completions, and an SBOM of that
// binary (CycloneDX); SHA256SUMS of all; and, of a version, NOTES.md, its part of the
// changelog. The same commit, time and Go make the same bytes, on any machine:
//
//	go run .ci/release -version v0.1.0 -epoch 1700000000 -out bin/release linux/amd64 …
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
	"slices"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "", "what it is built as")
	epoch := flag.Int64("epoch", 0, "when, in seconds since 1970: the time of all files")
	out := flag.String("out", "bin/release", "folder; what is in it is replaced")
	flag.Parse()
	r := release{version: *version, at: time.Unix(*epoch, 0).UTC(), out: *out}
	if err := r.make(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one version.
type release struct {
	version string
	at      time.Time
	out     string
	scratch string // a folder for what is on the way
	common  []file // what every archive has beside its binary
}

// file is a file of an archive.
type file struct {
	name string
	mode int64
	text []byte
}

func (r *release) make(platforms []string) (err error) {
	if !regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]*$`).MatchString(r.version) || len(platforms) == 0 {
		return fmt.Errorf("-version %q: needed, of letters, digits, dots and dashes; and the platforms, as in linux/amd64", r.version)
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
	return r.sums()
}

// number is what a version is called where it is one, and not a commit.
var number = regexp.MustCompile(`^v([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?)$`)

// notes writes the changelog's part on a version. One that it does not know is not
// released.
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
		return fmt.Errorf("CHANGELOG.md has no part %q", "## "+m[1]+", DATE")
	}
	_, part, _ = strings.Cut(part, "\n")
	part, _, _ = strings.Cut(part, "\n## ")
	return r.write("NOTES.md", []byte(strings.TrimSpace(part)+"\n"))
}

// documents collects what every archive has. The manual page and completions are the
// program's own account of itself.
func (r *release) documents() error {
	for _, pattern := range []string{"LICENSE", "README.md", "CHANGELOG.md", "configs/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			return fmt.Errorf("%s: nothing is there, %v", pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			r.common = append(r.common, file{filepath.ToSlash(name), 0o644, text})
		}
	}
	own := filepath.Join(r.scratch, "own")
	if err := r.build(runtime.GOOS, runtime.GOARCH, own); err != nil {
		return err
	}
	for _, d := range [][]string{{"man/weir.1", "man"}, {"completion/weir.bash", "completion", "bash"}, {"completion/_weir", "completion", "zsh"}, {"completion/weir.fish", "completion", "fish"}} {
		text, err := exec.Command(own, d[1:]...).Output()
		if err != nil {
			return fmt.Errorf("weir %v: %w", d[1:], err)
		}
		r.common = append(r.common, file{d[0], 0o644, text})
	}
	return nil
}

// build makes a binary that depends on the source, the version and Go alone.
func (r *release) build(system, machine, to string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.release="+r.version, "-o", to, "./cmd/weir")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+machine, "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

func (r *release) platform(p string) error {
	system, machine, ok := strings.Cut(p, "/")
	if !ok {
		return fmt.Errorf("want SYSTEM/MACHINE, as in linux/amd64")
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
	archive, err := pack(name, append([]file{{program, 0o755, text}}, r.common...))
	if err != nil {
		return err
	}
	if err := r.write(name+kind, archive); err != nil {
		return err
	}
	parts, err := r.parts(binary, program, text)
	if err != nil {
		return err
	}
	return r.write(name+".cdx.json", parts)
}

func (r *release) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), text, 0o644)
}

// sums writes SHA256SUMS, for sha256sum -c.
func (r *release) sums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(text), e.Name()))
	}
	slices.Sort(lines)
	return r.write("SHA256SUMS", []byte(strings.Join(lines, "")))
}
