package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCommand struct{}

// Run prints what the build knows of itself.
func (*versionCommand) Run(p *process) error {
	p.printf("%s\n", versionLine())
	return nil
}

func versionLine() string {
	return fmt.Sprintf("weir %s %s %s/%s", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// release is the version that a release is built as; its linker sets it.
var release = ""

// version is that of the release, the module's or, of a build from a checkout, its
// commit.
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
