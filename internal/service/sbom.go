package service

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// exportSBOM returns the software bill of materials of a repository (Document B section 2.4). It lists the repository
// and one package per language.
func exportSBOM(s *Service, req *request) response {
	r := req.repo
	name := "com.example." + r.fullName()
	packages := []object{spdxPackage("SPDXRef-Repository", name, r.head(), "git+"+req.base+"/"+r.fullName(), "MIT")}
	for _, language := range r.languages() {
		packages = append(packages, spdxPackage("SPDXRef-"+language, language+":standard-library", "1.0", "NOASSERTION", "NOASSERTION"))
	}
	return response{status: http.StatusOK, modified: r.pushed, body: object{{"sbom", object{
		{"SPDXID", "SPDXRef-DOCUMENT"}, {"spdxVersion", "SPDX-2.3"},
		{"creationInfo", object{{"created", timestamp(r.pushed)}, {"creators", []string{"Tool: reference-service"}}}},
		{"name", name}, {"dataLicense", "CC0-1.0"}, {"documentDescribes", []string{"SPDXRef-Repository"}},
		{"documentNamespace", req.base + "/" + r.fullName() + "/dependency_graph/sbom-" + itoa(r.id)}, {"packages", packages},
	}}}}
}

func spdxPackage(id, name, version, location, license string) object {
	return object{
		{"SPDXID", id}, {"name", name}, {"versionInfo", version}, {"downloadLocation", location}, {"filesAnalyzed", false},
		{"licenseConcluded", license}, {"licenseDeclared", license}, {"copyrightText", "NOASSERTION"},
	}
}

// languages returns the sorted file extensions of the programming languages in use.
func (r *repository) languages() (all []string) {
	for _, f := range r.files() {
		switch ending := strings.TrimPrefix(path.Ext(f.path), "."); ending {
		case "go", "py":
			if !slices.Contains(all, ending) {
				all = append(all, ending)
			}
		}
	}
	slices.Sort(all)
	return all
}
