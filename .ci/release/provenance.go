package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
)

// statement is an in-toto Statement v1 with the predicate SLSA Provenance v1.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

// resource is a ResourceDescriptor: a file of the release by name, or an input of the build by URI.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string         `json:"buildType"`
		ExternalParameters   map[string]any `json:"externalParameters"`
		InternalParameters   map[string]any `json:"internalParameters"`
		ResolvedDependencies []resource     `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

const repository = "https://github.com/weirgate/weir"

// provenance writes provenance.json. The builder is any machine that runs make release, so the statement has SLSA build
// level 1: a reader trusts the key that signs SHA256SUMS, or builds the release again. The statement has no time and no
// name of a machine, because it must be reproducible. A build of uncommitted changes gets no statement, because no
// commit has its source; for a version number, such a build is an error.
func (r *release) provenance(platforms []string) error {
	if strings.HasSuffix(r.commit, "-dirty") {
		if number.MatchString(r.version) {
			return fmt.Errorf("version %s: the source has uncommitted changes; commit or remove them", r.version)
		}
		fmt.Println("no provenance.json, because the source has uncommitted changes")
		return nil
	}
	files, err := r.digests()
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range files {
		s.Subject = append(s.Subject, resource{Name: f.name, Digest: map[string]string{"sha256": f.sha256}})
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = repository + "/tree/" + r.commit + "/.ci/release"
	d.ExternalParameters = map[string]any{"version": r.version, "epoch": r.at.Unix(), "platforms": platforms}
	d.InternalParameters = map[string]any{"go": runtime.Version(), "flags": r.flags(), "environment": environment}
	d.ResolvedDependencies = []resource{{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.commit}}}
	s.Predicate.RunDetails.Builder.ID = repository + "/blob/" + r.commit + "/deploy/README.md#make-a-release"
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return r.write("provenance.json", append(text, '\n'))
}
