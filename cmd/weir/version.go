package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
)

type versionCommand struct{}

// Run prints the version, the version of Go, the platform and the source.
func (*versionCommand) Run(p *process) error {
	p.printf("%s\n", versionLine())
	return nil
}

func versionLine() string {
	return fmt.Sprintf("weir %s %s %s/%s%s", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, source())
}

// The linker sets the version and the commit of a release.
var (
	release = ""
	commit  = ""
)

// version returns the version of the release. Without a release, version returns the version of the module, which names
// the commit unless it is a tag.
func version() string {
	if release != "" {
		return release
	}
	return moduleVersion()
}

// moduleVersion parses the build information once, because the history asks for the version every few seconds.
var moduleVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
})

// source returns the commit of the source: of the release, or of the checkout. A module that go install downloaded has no
// commit, so source returns its checksum, which is also in the checksum database of Go.
func source() string {
	if commit != "" {
		return " commit " + commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	switch {
	case settings["vcs.modified"] == "true":
		return " commit " + settings["vcs.revision"] + "-dirty"
	case settings["vcs.revision"] != "":
		return " commit " + settings["vcs.revision"]
	case info.Main.Sum != "":
		return " module " + info.Main.Sum
	}
	return ""
}
