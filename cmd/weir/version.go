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

// version returns the version of the release. Without a release, version returns the version of the module, which names
// the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case release != "":
		return release
	case ok && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return "devel"
}
