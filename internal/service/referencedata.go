package service

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

//go:embed reference
var referenceFiles embed.FS

const templateFolder, templateEnding = "reference/gitignore/", ".gitignore"

// codeOfConduct is one entry of reference/codes_of_conduct.yaml (Document B section 2.2).
type codeOfConduct struct {
	Key  string `yaml:"key"`
	Name string `yaml:"name"`
	Body string `yaml:"body"`
}

var codesOfConduct = readReference[[]codeOfConduct]("codes_of_conduct.yaml")

// readReference returns the content of a file of reference data.
func readReference[T any](name string) (into T) {
	text, err := referenceFiles.ReadFile("reference/" + name)
	if err == nil {
		err = yaml.Load(text, &into)
	}
	if err != nil {
		panic(err) // the file is embedded
	}
	return into
}

func listTemplates(*Service, *request) response {
	files, err := fs.Glob(referenceFiles, templateFolder+"*"+templateEnding)
	if err != nil {
		panic(err) // the pattern is valid
	}
	names := []string{}
	for _, name := range files {
		names = append(names, strings.TrimSuffix(path.Base(name), templateEnding))
	}
	slices.Sort(names)
	return response{status: http.StatusOK, body: names}
}

func getTemplate(s *Service, req *request) response {
	text, err := referenceFiles.ReadFile(templateFolder + req.params["name"] + templateEnding)
	if err != nil {
		return notFound()
	}
	if s.accepts(req, "raw") {
		return response{status: http.StatusOK, text: text, kind: s.mediaType("raw") + "; charset=utf-8"}
	}
	return response{status: http.StatusOK, body: object{{"name", req.params["name"]}, {"source", string(text)}}}
}

func codeOfConductObject(req *request, c codeOfConduct) object {
	return object{
		{"key", c.Key}, {"name", c.Name}, {"url", req.base + "/codes_of_conduct/" + c.Key},
		{"html_url", req.base + "/conduct/" + c.Key},
	}
}

func listCodesOfConduct(_ *Service, req *request) response {
	return response{status: http.StatusOK, body: renderAll(codesOfConduct, func(c codeOfConduct) object { return codeOfConductObject(req, c) })}
}

func getCodeOfConduct(s *Service, req *request) response {
	for _, c := range codesOfConduct {
		if c.Key == req.params["key"] {
			return response{status: http.StatusOK, body: append(codeOfConductObject(req, c), field{"body", c.Body})}
		}
	}
	return notFound()
}

// mediaType returns the vendor media type of a representation, for example "raw".
func (s *Service) mediaType(representation string) string {
	return "application/vnd." + s.config.Dialect.Vendor + "." + representation + "+json"
}

// accepts reports whether the Accept header names a vendor representation. The media type may contain the version "v3".
func (s *Service) accepts(req *request, representation string) bool {
	return slices.ContainsFunc(acceptedTypes(req), func(name string) bool {
		rest, ok := strings.CutPrefix(name, "application/vnd."+s.config.Dialect.Vendor+".")
		return ok && strings.TrimSuffix(strings.TrimPrefix(rest, "v3."), "+json") == representation
	})
}

// acceptedTypes returns the media types of the Accept header in lower case and without parameters.
func acceptedTypes(req *request) []string {
	var names []string
	for _, value := range req.Header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			name, _, _ := strings.Cut(strings.ToLower(part), ";")
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}
