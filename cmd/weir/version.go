package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCommand struct{}

// Run prints the version, the version of Go and the platform.
func (*versionCommand) Run(p *process) error {
	p.printf("%s\n", versionLine())
	return nil
}

func versionLine() string {
	return fmt.Sprintf("weir %s %s %s/%s", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// release is the version of a release. The linker sets it.
var release = ""

// version returns the version of the release or of the module, or else the commit.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "devel"
}
