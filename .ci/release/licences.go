package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed lists the licences (SPDX) that a linked module may have. They allow a binary under another licence that comes
// with their texts. MPL-2.0 also requires that the source of the module is available, which is public.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0"}

var (
	// licenceFile matches the names of files with licences.
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)`)
	// noticeFile matches the names of files that must be distributed with a licence.
	noticeFile = regexp.MustCompile(`(?i)^(notice|patents)`)
)

// writeLicences writes the licence texts of all modules in the binary for a platform.
func (r *release) writeLicences(path, platform string) error {
	system, machine, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("-licences: platform %q: name one such as linux/amd64", platform)
	}
	_, texts, err := r.licences(system, machine)
	if err != nil {
		return err
	}
	return os.WriteFile(path, texts, 0o644)
}

// licences returns the SPDX expression of each module in a binary by module path, and the licence texts of all modules.
// The path of the standard library is "stdlib". Packages of a module may have other licences. So licences reads
// the folder of each linked package, and its parents up to the folder of the module.
func (r *release) licences(system, machine string) (map[string]string, []byte, error) {
	const format = `{{if .Standard}}stdlib{{"\t"}}{{.Root}}{{"\t"}}{{.Root}}{{else if not .Module.Main}}{{.Module.Path}}{{"\t"}}{{.Module.Dir}}{{"\t"}}{{.Dir}}{{end}}`
	list, err := r.command(system, machine, "list", "-deps", "-f", format, "./cmd/weir").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	folders := map[string]map[string]bool{} // module -> folders
	for line := range strings.Lines(string(list)) {
		module, rest, found := strings.Cut(strings.TrimSpace(line), "\t")
		if !found {
			continue // a package of Weir
		}
		if folders[module] == nil {
			folders[module] = map[string]bool{}
		}
		root, folder, _ := strings.Cut(rest, "\t")
		for ; len(folder) >= len(root); folder = filepath.Dir(folder) {
			folders[module][folder] = true
		}
	}
	expressions := map[string]string{}
	text := bytes.NewBufferString("Weir contains the following modules under these licences.\n")
	for _, module := range slices.Sorted(maps.Keys(folders)) {
		expression, texts, err := readLicences(slices.Sorted(maps.Keys(folders[module])))
		if err != nil {
			return nil, nil, fmt.Errorf("module %s: %w", module, err)
		}
		expressions[module] = expression
		fmt.Fprintf(text, "\n%s\n%s: %s\n\n%s", strings.Repeat("=", 100), module, expression, texts)
	}
	return expressions, text.Bytes(), nil
}

// readLicences returns the SPDX expression and the text of the licences in the folders of a module. It returns an error
// if there is no licence, and for a licence that is unknown or not allowed.
func readLicences(folders []string) (expression string, texts []byte, err error) {
	var ids []string
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return "", nil, err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) && !noticeFile.MatchString(e.Name()) {
				continue
			}
			path := filepath.Join(folder, e.Name())
			text, err := os.ReadFile(path)
			if err != nil {
				return "", nil, err
			}
			texts = append(append(texts, bytes.TrimSpace(text)...), "\n\n"...)
			if noticeFile.MatchString(e.Name()) {
				continue
			}
			found := licensecheck.Scan(text)
			if found.Percent < 90 {
				return "", nil, fmt.Errorf("%s: only %.0f%% of the text is a known licence; replace the module", path, found.Percent)
			}
			for _, m := range found.Match {
				if !slices.Contains(allowed, m.ID) {
					return "", nil, fmt.Errorf("%s: licence %s is not allowed; replace the module, or add the licence to .ci/release/licences.go", path, m.ID)
				}
				ids = append(ids, m.ID)
			}
		}
	}
	if len(ids) == 0 {
		return "", nil, fmt.Errorf("no licence in %v; replace the module", folders)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND "), texts, nil
}
