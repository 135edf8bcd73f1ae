package service

import (
	"net/http"
	"path"
	"slices"
)

// exportSBOM returns the software bill of materials of a repository (Document B section 2.4). It lists the repository
// and one package per language.
func exportSBOM(s *Service, req *request) response {
	r := req.repo
	name := "com.example." + r.fullName()
	packages := []object{spdxPackage("SPDXRef-Repository", name, r.head(), "git+"+req.base+"/"+r.fullName(), "MIT")}
	for _, language := range []string{"go", "py"} { // by the endings of files
		if slices.ContainsFunc(r.paths(), func(name string) bool { return path.Ext(name) == "."+language }) {
			packages = append(packages, spdxPackage("SPDXRef-"+language, language+":standard-library", "1.0", "NOASSERTION", "NOASSERTION"))
		}
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
