// Command generate writes the route table of the github dialect from the published descriptions of the API.
//
//	go -C policy/github/generate run .
//
// The descriptions are the npm package in the constant release, which npm downloads. The table has one line per
// operation of any product, sorted by ID. Its header line names the columns.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// release is the npm package with the descriptions. integrity is the digest of its archive.
const (
	release   = "@octokit/openapi@23.0.2"
	integrity = "sha512-pV8M7L9GY23AybNvTmo2nyjmpmnt6+2sRE/tqr0ZLQcPS4lnw7u5eZGNmwRNkBC3D7gZXbFx5AHzLUVRBXGDhg=="
)

// products are the descriptions in the order of preference: an operation gets its row from the first product that has
// the operation.
var products = []struct{ name, file string }{
	{"cloud", "api.github.com"}, {"ghec", "ghec"}, {"ghes-3.19", "ghes-3.19"}, {"ghes-3.18", "ghes-3.18"}, {"ghes-3.17", "ghes-3.17"},
}

// description is the part of an OpenAPI description that the table needs.
type description struct {
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Parameters map[string]parameter `json:"parameters"`
	} `json:"components"`
}

type operation struct {
	ID         string                     `json:"operationId"`
	Parameters []parameter                `json:"parameters"`
	Responses  map[string]json.RawMessage `json:"responses"`
	Deprecated bool                       `json:"deprecated"`
	Servers    []struct {
		URL string `json:"url"`
	} `json:"servers"`
	Details struct {
		Category  string `json:"category"`
		CloudOnly any    `json:"githubCloudOnly"`
		ForApps   *bool  `json:"enabledForGitHubApps"`
		Notifies  bool   `json:"triggersNotification"`
	} `json:"x-github"`
}

type parameter struct {
	Ref          string `json:"$ref"`
	Name         string `json:"name"`
	In           string `json:"in"`
	MultiSegment bool   `json:"x-multi-segment"`
}

// row is a line of the table.
type row struct {
	id, method, path, category string
	flags, products            []string
	statuses                   []int
	paging, host               string
}

func main() {
	out := flag.String("out", "../operations.tsv", "file to write")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	files, err := download()
	if err != nil {
		return err
	}
	rows := map[string]*row{} // by method and path
	for _, p := range products {
		var d description
		if err := json.Unmarshal(files["package/generated/"+p.file+".json"], &d); err != nil {
			return fmt.Errorf("read the description of %s: %w", p.name, err)
		}
		for path, methods := range d.Paths {
			for method, op := range methods {
				key := method + path
				if rows[key] == nil {
					if rows[key], err = newRow(&d, strings.ToUpper(method), path, op); err != nil {
						return fmt.Errorf("%s: %s %s: %w", p.name, method, path, err)
					}
				}
				rows[key].products = append(rows[key].products, p.name)
			}
		}
	}
	var list []*row
	for _, r := range rows {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.method+a.path, b.method+b.path))
	})
	var text bytes.Buffer
	fmt.Fprintf(&text, "# Operations of the API, from %s by policy/github/generate. Do not edit.\n", release)
	text.WriteString("# id\tmethod\tpath\tcategory\tflags\tstatuses\tpaging\tproducts\thost\n")
	for _, r := range list {
		statuses := make([]string, len(r.statuses))
		for i, s := range r.statuses {
			statuses[i] = strconv.Itoa(s)
		}
		columns := []string{
			r.id, r.method, r.path, r.category, strings.Join(r.flags, " "), strings.Join(statuses, " "), r.paging,
			strings.Join(r.products, " "), r.host,
		}
		text.WriteString(strings.TrimRight(strings.Join(columns, "\t"), "\t") + "\n")
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

// parameterPattern matches a parameter of a path template.
var parameterPattern = regexp.MustCompile(`\{([^}]+)\}`)

func newRow(d *description, method, path string, op operation) (*row, error) {
	r := &row{id: op.ID, method: method, category: op.Details.Category}
	if op.ID == "" || r.category == "" {
		return nil, fmt.Errorf("operation without ID or category")
	}
	slashes, query := map[string]bool{}, map[string]bool{}
	for _, p := range op.Parameters {
		if p.Ref != "" {
			p = d.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
		}
		switch p.In {
		case "path":
			slashes[p.Name] = p.MultiSegment
		case "query":
			query[p.Name] = true
		}
	}
	// {+name} is a parameter that may contain slashes (RFC 6570 section 3.2.3).
	r.path = parameterPattern.ReplaceAllStringFunc(path, func(s string) string {
		name := strings.ReplaceAll(strings.Trim(s, "{}"), "-", "_")
		if slashes[strings.Trim(s, "{}")] || strings.Contains(path, "}...{") && (name == "base" || name == "head") {
			name = "+" + name
		}
		return "{" + name + "}"
	})
	if op.Deprecated {
		r.flags = append(r.flags, "deprecated")
	}
	if cloudOnly, _ := op.Details.CloudOnly.(bool); cloudOnly {
		r.flags = append(r.flags, "cloud-only")
	}
	if op.Details.ForApps != nil && !*op.Details.ForApps {
		r.flags = append(r.flags, "no-apps")
	}
	if op.Details.Notifies {
		r.flags = append(r.flags, "notifies")
	}
	for status := range op.Responses {
		if n, err := strconv.Atoi(status); err == nil {
			r.statuses = append(r.statuses, n)
		}
	}
	slices.Sort(r.statuses)
	switch {
	case query["page"]:
		r.paging = "page"
	case query["after"], query["cursor"]:
		r.paging = "cursor"
	}
	switch { // other bases than that of the API
	case len(op.Servers) == 0:
	case strings.Contains(op.Servers[0].URL, "uploads"):
		r.host = "uploads"
	default:
		r.host = "management"
	}
	return r, nil
}

// download returns the files of the package by name, after a check of the archive's digest.
func download() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "generate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	pack := exec.Command("npm", "pack", "--silent", "--pack-destination", dir, release)
	pack.Stderr = os.Stderr
	if err := pack.Run(); err != nil {
		return nil, fmt.Errorf("npm pack %s: %w", release, err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(names) != 1 {
		return nil, fmt.Errorf("npm pack %s wrote %d archives: %w", release, len(names), err)
	}
	archive, err := os.ReadFile(names[0])
	if err != nil {
		return nil, err
	}
	sum := sha512.Sum512(archive)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != integrity {
		return nil, fmt.Errorf("npm pack %s: the archive has the digest %s, want %s", release, got, integrity)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(h.Name, ".json") && !strings.HasSuffix(h.Name, ".deref.json") {
			if files[h.Name], err = io.ReadAll(r); err != nil {
				return nil, err
			}
		}
	}
}
