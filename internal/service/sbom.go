package service

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// exportSBOM describes what the repository is made of (Document B section 2.4): itself,
// and a package for each language that it has files of.
func exportSBOM(s *Service, req *request) response {
	r := req.in.repository
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

// languages are those of the repository's files, by their endings.
func (r *repository) languages() (all []string) {
	for _, f := range r.files {
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
