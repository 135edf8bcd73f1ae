package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// profileRounds is the length of a profile in rounds, so that a part of one percent has enough samples.
const profileRounds = 5

// share is the CPU time of one part of the path.
type share struct {
	part  string
	times [2]time.Duration // per request: of a hit, and of a forwarded request
}

// buildProfiled builds the working tree with a file that writes CPU profiles, which the product does not have.
func (b *bench) buildProfiled(ctx context.Context) (binary string, err error) {
	source, err := conf.ReadFile("conf/profile.go.txt")
	if err != nil {
		return "", err
	}
	added, overlay, binary := filepath.Join(b.dir, "profile.go"), filepath.Join(b.dir, "overlay.json"), filepath.Join(b.dir, "weir-profile")
	target, err := filepath.Abs("cmd/weir/profile.go")
	if err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {target: added}})
	if err != nil {
		return "", err
	}
	for file, text := range map[string][]byte{added: source, overlay: replace} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return "", err
		}
	}
	if out, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", binary, "./cmd/weir").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ./cmd/weir for profiles; run the benchmark at the root of the repository: %w: %s", err, out)
	}
	return binary, nil
}

// parts profiles a hit and a forwarded request, and returns the CPU time of each part of the path as Markdown.
func (b *bench) parts(ctx context.Context) (string, error) {
	binary, err := b.buildProfiled(ctx)
	if err != nil {
		return "", err
	}
	p, err := b.spawn(ctx, "0", binary, "serve", "--config", "{{.File \"weir.yaml\" \"memory:\"}}")
	if err != nil {
		return "", err
	}
	rules, err := readParts()
	if err != nil {
		return "", err
	}
	var shares []share
	for _, r := range append(rules, rule{part: otherPart}) {
		if !slices.ContainsFunc(shares, func(s share) bool { return s.part == r.part }) {
			shares = append(shares, share{part: r.part})
		}
	}
	var total [2]time.Duration
	unused := slices.Clone(rules)
	for i, path := range []string{smallPath, knownPath} {
		s := scenario{path: path, connections: 64, hit: path == smallPath}
		if _, err := b.load(ctx, s, p, 1, false); err != nil {
			return "", err
		}
		stacks, requests, err := b.profile(ctx, s, p)
		if err != nil {
			return "", err
		}
		for _, stack := range stacks {
			found := ruleOf(stack.functions, rules)
			unused = slices.DeleteFunc(unused, func(r rule) bool { return r == found })
			at := slices.IndexFunc(shares, func(s share) bool { return s.part == found.part })
			spent := time.Duration(float64(stack.spent) / requests)
			shares[at].times[i] += spent
			total[i] += spent
		}
	}
	for _, r := range unused {
		if strings.HasPrefix(r.prefix, "weir/") {
			fmt.Fprintf(os.Stderr, "conf/parts.tsv: no sample is in %s; was it renamed?\n", r.prefix)
		}
	}
	var out strings.Builder
	out.WriteString("\n| part of the path | hit | | forwarded | |\n|---|---|---|---|---|\n")
	for _, s := range append(shares, share{"sum", total}) {
		fmt.Fprintf(&out, "| %s |", s.part)
		for i, spent := range s.times {
			fmt.Fprintf(&out, " %.1f µs | %.0f %% |", spent.Seconds()*1e6, 100*float64(spent)/float64(total[i]))
		}
		out.WriteString("\n")
	}
	return out.String(), nil
}

// stack is a set of samples with the same functions, the innermost first.
type stack struct {
	functions []string
	spent     time.Duration
}

// profile loads a process during a profile, and returns the samples and the number of requests.
func (b *bench) profile(ctx context.Context, s scenario, p *process) (stacks []stack, requests float64, err error) {
	if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return nil, 0, err
	}
	f, err := b.load(ctx, s, p, profileRounds*b.seconds, true)
	if err != nil {
		return nil, 0, err
	}
	if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return nil, 0, err
	}
	for range 100 {
		if _, err := os.Stat(p.profile); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", p.profile).CombinedOutput()
	if err != nil {
		return nil, 0, fmt.Errorf("read the profile: %w: %s", err, out)
	}
	if err := os.Remove(p.profile); err != nil {
		return nil, 0, err
	}
	return readStacks(string(out)), f.requests, nil
}

// readStacks reads the output of "go tool pprof -traces": a line for each stack, then a time with the innermost function
// and further functions.
func readStacks(text string) (stacks []stack) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), " (inline)"))
		switch {
		case len(fields) == 0, !strings.HasPrefix(line, " "):
			continue
		case len(fields) >= 2:
			if spent, err := time.ParseDuration(fields[0]); err == nil {
				stacks = append(stacks, stack{[]string{strings.Join(fields[1:], " ")}, spent})
				continue
			}
		}
		if n := len(stacks); n > 0 {
			stacks[n-1].functions = append(stacks[n-1].functions, strings.Join(fields, " "))
		}
	}
	return stacks
}

// rule assigns functions to a part.
type rule struct{ prefix, part string }

// otherPart is the part of the functions without a row.
const otherPart = "other"

func readParts() (rules []rule, err error) {
	text, err := conf.ReadFile("conf/parts.tsv")
	for line := range strings.Lines(string(text)) {
		if prefix, part, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && !strings.HasPrefix(line, "#") {
			rules = append(rules, rule{prefix, part})
		}
	}
	return rules, err
}

// ruleOf returns the rule of the nearest function that has one. The first rule of a function counts.
func ruleOf(functions []string, rules []rule) rule {
	for _, name := range functions {
		name = strings.TrimPrefix(name, "github.com/weirgate/")
		for _, r := range rules {
			if strings.HasPrefix(name, r.prefix) {
				return r
			}
		}
	}
	return rule{part: otherPart}
}
