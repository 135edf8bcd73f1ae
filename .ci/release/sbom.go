package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// bill is an SBOM in CycloneDX 1.6. The SBOM lists the linked modules with their versions, and Go.
type bill struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Serial     string      `json:"serialNumber"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Licenses   []licence  `json:"licenses,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licence struct {
	Expression string `json:"expression"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// sbom returns the SBOM of a binary. The licences are those of the linked modules by path. The serial number of the SBOM
// is derived from the bytes of the binary.
func (r *release) sbom(path, program string, binary []byte, licences map[string]string) ([]byte, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // RFC 9562: version 8
	b := bill{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Serial: fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16]),
	}
	b.Metadata.Timestamp = r.at.Format(time.RFC3339)
	main := module(debug.Module{Path: info.Main.Path, Version: r.version})
	main.Type, main.Hashes, main.Licenses = "application", []hash{{"SHA-256", fmt.Sprintf("%x", sum)}}, []licence{{"Apache-2.0"}}
	main.Properties = []property{{"weir:file", program}}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" {
			main.Properties = append(main.Properties, property{"weir:go:" + s.Key, s.Value})
		}
	}
	b.Metadata.Component = main
	b.Components = []component{module(debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")})}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		b.Components = append(b.Components, module(*d))
	}
	for i, c := range b.Components {
		if licences[c.Name] == "" {
			return nil, fmt.Errorf("SBOM: the licence of %s is unknown", c.Name)
		}
		b.Components[i].Licenses = []licence{{licences[c.Name]}}
	}
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

// module returns a module as a component. The hash of go.sum is a property, because it is not the hash of a file.
func module(m debug.Module) component {
	url := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Type: "library", Ref: url, Name: m.Path, Version: m.Version, PURL: url}
	if m.Sum != "" {
		c.Properties = []property{{"weir:go:sum", m.Sum}}
	}
	return c
}
