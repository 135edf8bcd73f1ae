package deploy

import (
	"debug/elf"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// image is what the Dockerfile says of the image.
type image struct {
	build, final instructions.Stage
	user         string
	exposed      []string
	health       []string
	entrypoint   []string
	command      []string
	copied       map[string]string // path in the image: path in the build stage
}

// dockerfile parses it as docker does, and has docker's linter look at it.
func dockerfile(t *testing.T) image {
	t.Helper()
	file, err := parser.Parse(strings.NewReader(text(t, "deploy/docker/Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, message string, at []parser.Range) {
		t.Errorf("Dockerfile:%v: %s: %s", at, rule, message)
	}})
	stages, _, err := instructions.Parse(file.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range file.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	if len(stages) != 2 {
		t.Fatalf("%d stages", len(stages))
	}
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
			i.entrypoint = exec1(t, c.ShellDependantCmdLine)
		case *instructions.CmdCommand:
			i.command = exec1(t, c.ShellDependantCmdLine)
		case *instructions.CopyCommand:
			if c.From != i.build.Name || len(c.SourcePaths) != 1 {
				t.Errorf("%s: want one file of the stage %s", c, i.build.Name)
			}
			i.copied[c.DestPath] = c.SourcePaths[0]
		default:
			t.Errorf("%s: nothing that an image without a shell can do", c)
		}
	}
	return i
}

// exec1 is a command that needs no shell, for there is none.
func exec1(t *testing.T, c instructions.ShellDependantCmdLine) []string {
	t.Helper()
	if c.PrependShell {
		t.Errorf("%v needs a shell", c.CmdLine)
	}
	return c.CmdLine
}

func TestTheImageIsTheBinaryAndNothingElse(t *testing.T) {
	i := dockerfile(t)
	if i.final.BaseName != "scratch" || i.user != "65532:65532" {
		t.Errorf("from %s as %q", i.final.BaseName, i.user)
	}
	if strings.HasSuffix(i.build.BaseName, ":latest") || !strings.Contains(i.build.BaseName, ":") {
		t.Errorf("%s: which one?", i.build.BaseName)
	}
	if minor := strings.TrimPrefix(i.build.BaseName, "golang:"); !strings.Contains(text(t, "go.mod"), "\ngo "+minor+".") {
		t.Errorf("%s is not the Go of go.mod", i.build.BaseName)
	}
	if len(i.copied) != 2 || i.copied["/etc/ssl/certs/ca-certificates.crt"] == "" || i.copied[i.entrypoint[0]] == "" {
		t.Errorf("%v", i.copied)
	}
	if !slices.Equal(i.exposed, []string{"8080", "9090"}) {
		t.Errorf("%v", i.exposed)
	}
}

// TestTheImageIsBuiltFromWhatIsSentToDocker runs the commands of the build stage on the
// files that .dockerignore lets through, as docker would, and starts what comes out.
func TestTheImageIsBuiltFromWhatIsSentToDocker(t *testing.T) {
	i := dockerfile(t)
	source, out := t.TempDir(), t.TempDir()
	for _, name := range strings.Fields(tool(t, "git", "-C", root, "ls-files")) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || !sent(t, name) {
			continue // removed, and not committed so far
		}
		if err := os.MkdirAll(filepath.Join(source, path.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(source, name), []byte(text(t, name)), info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range i.build.Commands {
		r, ok := c.(*instructions.RunCommand)
		if !ok {
			continue
		}
		line := strings.ReplaceAll(strings.Join(r.CmdLine, " "), "/out/", out+"/")
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", line)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+goarch(t), "VERSION=v9.8.7")
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, output)
		}
	}
	binary := strings.ReplaceAll(i.copied[i.entrypoint[0]], "/out/", out+"/")
	if got := tool(t, binary, "version"); !strings.HasPrefix(got, "weir v9.8.7 ") {
		t.Errorf("version: %s", got)
	}
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it is not static")
		}
	}
}

func goarch(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(tool(t, "go", "env", "GOARCH"))
}

// sent reports whether .dockerignore lets a file through: the last rule that fits counts.
func sent(t *testing.T, name string) bool {
	t.Helper()
	yes := true
	for _, rule := range strings.Split(strings.TrimSpace(text(t, "deploy/docker/Dockerfile.dockerignore")), "\n") {
		if rule == "" || rule[0] == '#' {
			continue
		}
		pattern, let := strings.CutPrefix(rule, "!")
		suffix, anywhere := strings.CutPrefix(pattern, "**/")
		fits := false
		for at := name; at != "." && !fits; at = path.Dir(at) { // a folder stands for what is in it
			if anywhere {
				fits, _ = path.Match(suffix, path.Base(at))
			} else {
				fits, _ = path.Match(pattern, at)
			}
		}
		if fits {
			yes = let
		}
	}
	return yes
}

// TestTheImageChecksItself runs the image's HEALTHCHECK against a gateway that was started
// by its command, and against none.
func TestTheImageChecksItself(t *testing.T) {
	i := dockerfile(t)
	if want := []string{"serve", "--config", "/etc/weir/weir.yaml"}; !slices.Equal(i.command, want) {
		t.Errorf("%v, and the configuration is mounted for %v", i.command, want)
	}
	if i.health[0] != "CMD" || i.health[1] != i.entrypoint[0] {
		t.Fatalf("%v", i.health)
	}
	r := run(t, text(t, "deploy/compose/weir.yaml"), "/run/secrets", composeSecrets(), composeEnv(redis(t))...)
	if got := tool(t, weir(t), append(i.health[2:], "--admin", r.admin)...); got != "ready\n" {
		t.Errorf("%q", got)
	}
	if err := exec.CommandContext(t.Context(), weir(t), append(i.health[2:], "--admin", "127.0.0.1:1")...).Run(); err == nil {
		t.Error("nobody is healthy")
	}
}
