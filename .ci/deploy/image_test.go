package deploy

import (
	"debug/elf"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// image is the parsed Dockerfile.
type image struct {
	build, final instructions.Stage
	user         string
	exposed      []string
	health       []string
	entrypoint   []string
	command      []string
	copied       map[string]string // path in the image -> path in the build stage
}

// dockerfile parses the Dockerfile with the parser of BuildKit, and fails on a linter warning.
func dockerfile(t *testing.T) image {
	t.Helper()
	file, err := parser.Parse(strings.NewReader(readFile(t, "deploy/docker/Dockerfile")))
	must(t, err)
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, message string, at []parser.Range) {
		t.Errorf("Dockerfile:%v: %s: %s", at, rule, message)
	}})
	stages, _, err := instructions.Parse(file.AST, lint)
	must(t, err)
	for _, w := range file.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	stopIf(t, len(stages) != 2, "got %d stages, want 2", len(stages))
	i := image{build: stages[0], final: stages[1], copied: map[string]string{}}
	for _, c := range i.final.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.ExposeCommand:
			i.exposed = append(i.exposed, c.Ports...)
		case *instructions.HealthCheckCommand:
			i.health = c.Health.Test
		case *instructions.EntrypointCommand:
			i.entrypoint = execForm(t, c.ShellDependantCmdLine)
		case *instructions.CmdCommand:
			i.command = execForm(t, c.ShellDependantCmdLine)
		case *instructions.CopyCommand:
			failIf(t, c.From != i.build.Name || len(c.SourcePaths) != 1, "%s: want one file of the stage %s", c, i.build.Name)
			i.copied[c.DestPath] = c.SourcePaths[0]
		default:
			t.Errorf("%s: an image without a shell cannot run this instruction", c)
		}
	}
	return i
}

// execForm returns the words of a command that needs no shell, because the image has no shell.
func execForm(t *testing.T, c instructions.ShellDependantCmdLine) []string {
	t.Helper()
	failIf(t, c.PrependShell, "%v needs a shell", c.CmdLine)
	return c.CmdLine
}

func TestImageContainsOnlyBinaryLicencesAndCertificates(t *testing.T) {
	i := dockerfile(t)
	failIf(t, i.final.BaseName != "scratch" || i.user != "65532:65532", "the base is %s and the user %q, want scratch and 65532:65532", i.final.BaseName, i.user)
	failIf(t, strings.HasSuffix(i.build.BaseName, ":latest") || !strings.Contains(i.build.BaseName, ":"), "the build image %s has no version", i.build.BaseName)
	version := strings.TrimPrefix(i.build.BaseName, "golang:")
	failIf(t, !strings.Contains(readFile(t, "go.mod"), "\ntoolchain go"+version+"\n"), "the build image %s is not the toolchain of go.mod", i.build.BaseName)
	want := []string{"/LICENSE", "/THIRD_PARTY_LICENSES", "/etc/ssl/certs/ca-certificates.crt", i.entrypoint[0]}
	got := slices.Sorted(maps.Keys(i.copied))
	failIf(t, !slices.Equal(got, want), "the image contains %v, want %v", got, want)
	failIf(t, !slices.Equal(i.exposed, []string{"8080", "9090"}), "the image exposes %v, want 8080 and 9090", i.exposed)
}

// TestImageBuildsFromBuildContext runs the commands of the build stage on the files that .dockerignore includes. The
// build uses the network for modules only: each command is the go command, which does not download a toolchain, and
// go build works without a module proxy after the download.
func TestImageBuildsFromBuildContext(t *testing.T) {
	t.Parallel()
	i := dockerfile(t)
	source, out := t.TempDir(), t.TempDir()
	for _, name := range strings.Fields(runTool(t, "git", "-C", root, "ls-files")) {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil || !inBuildContext(t, name) {
			continue // removed, but not committed yet
		}
		writeFile(t, source, name, readFile(t, name))
	}
	for _, c := range i.build.Commands {
		r, ok := c.(*instructions.RunCommand)
		if !ok {
			continue
		}
		line := strings.Join(r.CmdLine, " ")
		failIf(t, !regexp.MustCompile(`^([A-Z_]+=\S+ )*go (build|run|mod download)\b`).MatchString(line) || strings.ContainsAny(line, ";&|"), "RUN %s: want one go command, which needs only modules", line)
		line = strings.ReplaceAll(line, "/out/", out+"/")
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", line)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+goarch(t), "VERSION=v9.8.7", "COMMIT="+commit, "GOTOOLCHAIN=local")
		if strings.Contains(line, "go build ") {
			cmd.Env = append(cmd.Env, "GOPROXY=off")
		}
		output, err := cmd.CombinedOutput()
		stopIf(t, err != nil, "%s: %v\n%s", line, err, output)
	}
	binary := strings.ReplaceAll(i.copied[i.entrypoint[0]], "/out/", out+"/")
	got := runTool(t, binary, "version")
	failIf(t, !strings.HasPrefix(got, "weir v9.8.7 ") || !strings.HasSuffix(got, " commit "+commit+"\n"), "got the version %q, want weir v9.8.7 with the commit", got)
	licences := readBytes(t, strings.ReplaceAll(i.copied["/THIRD_PARTY_LICENSES"], "/out/", out+"/"))
	if !strings.Contains(string(licences), "\ngithub.com/redis/go-redis/v9: ") || !strings.Contains(string(licences), "\nstdlib: ") {
		t.Errorf("/THIRD_PARTY_LICENSES lacks go-redis or the standard library: %d bytes", len(licences))
	}
	license := strings.TrimPrefix(i.copied["/LICENSE"], "/src/")
	failIf(t, readFile(t, license) == "" || !inBuildContext(t, license), "%s is not in the build context", i.copied["/LICENSE"])
	f, err := elf.Open(binary)
	must(t, err)
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		failIf(t, p.Type == elf.PT_INTERP, "the binary is not static")
	}
}

func goarch(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(runTool(t, "go", "env", "GOARCH"))
}

// inBuildContext reports whether .dockerignore includes a file. The last rule that matches applies.
func inBuildContext(t *testing.T, name string) bool {
	t.Helper()
	included := true
	for _, rule := range strings.Split(strings.TrimSpace(readFile(t, "deploy/docker/Dockerfile.dockerignore")), "\n") {
		if rule == "" || rule[0] == '#' {
			continue
		}
		pattern, includes := strings.CutPrefix(rule, "!")
		suffix, anywhere := strings.CutPrefix(pattern, "**/")
		match := false
		for at := name; at != "." && !match; at = path.Dir(at) { // a rule for a folder applies to its files
			if anywhere {
				match, _ = path.Match(suffix, path.Base(at))
			} else {
				match, _ = path.Match(pattern, at)
			}
		}
		if match {
			included = includes
		}
	}
	return included
}

func TestImageHealthCheckReportsReadiness(t *testing.T) {
	i := dockerfile(t)
	want := []string{"serve", "--config", "/etc/weir/weir.yaml"}
	failIf(t, !slices.Equal(i.command, want), "the command is %v, want %v", i.command, want)
	stopIf(t, i.health[0] != "CMD" || i.health[1] != i.entrypoint[0], "the health check %v does not run %s", i.health, i.entrypoint[0])
	r := startGateway(t, readFile(t, "deploy/compose/weir.yaml"), "/run/secrets", composeSecrets(), composeEnv(startRedis(t))...)
	got := runTool(t, weirBinary(t), append(i.health[2:], "--admin", r.admin)...)
	failIf(t, got != "ready\n", "health check: got %q, want ready", got)
	err := exec.CommandContext(t.Context(), weirBinary(t), append(i.health[2:], "--admin", "127.0.0.1:1")...).Run()
	failIf(t, err == nil, "the health check succeeds without a gateway")
}
