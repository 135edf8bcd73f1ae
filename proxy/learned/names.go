package learned

import (
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Names remembers the names behind numbers of repositories and owners that the upstream has shown. The zero value is empty and ready
// for use. Names is safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	names bounded[string, Name] // by path, such as /repositories/7, without an object after the client and its security class
}

// Name is what the upstream has shown for a number or a node ID. It is empty for an object that a client and its credential cannot
// see.
type Name struct {
	Text  string
	Kind  string // the type of a node ID
	until time.Time
	since time.Time // start of the absence of an object, or of the last write of a client
}

const (
	maxNames = 16384
	// NameFor is the time for which a number keeps its name. A repository that is transferred out of a scope stays reachable by its
	// number for at most this time.
	NameFor = 5 * time.Minute
	// minAbsent and absentFor bound the time for which a number without a visible object is refused without a request. Within them,
	// that time is the age of the absence, because a replica of the upstream may not show a new object yet.
	minAbsent, absentFor = time.Second, time.Minute
)

// Add remembers the name behind a path.
func (n *Names) Add(path string, name Name) { n.add(path, name, NameFor) }

func (n *Names) add(path string, name Name, lifetime time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name.until = time.Now().Add(lifetime)
	n.names.list(maxNames).Add(path, name)
}

// get returns an entry. ok is false after its end, and without an entry.
func (n *Names) get(path string) (shown Name, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	shown, ok = n.names.list(maxNames).Get(path)
	return shown, ok && time.Now().Before(shown.until)
}

// AddAbsent remembers that a client and its credential cannot see an object. The first absence after a write of the client is a new
// one, because the write may create the object.
func (n *Names) AddAbsent(caller *policy.Caller, path string) {
	now := time.Now()
	before, _ := n.absent(caller, path)
	if before.since.IsZero() {
		before.since = now
	}
	n.add(absentPath(caller, path), Name{since: before.since}, min(max(now.Sub(before.since), minAbsent), absentFor))
}

// absent returns the absence of an object. It has no start if the client has written since.
func (n *Names) absent(caller *policy.Caller, path string) (Name, bool) {
	shown, ok := n.get(absentPath(caller, path))
	if written, _ := n.get(writePath + caller.Client); !written.since.Before(shown.since) {
		return Name{}, false
	}
	return shown, ok
}

// writePath precedes the client in the entry with its last write.
const writePath = "write "

// NoteWrite ends the absences for a client after its write. The client then causes at most one look-up more for each object.
func (n *Names) NoteWrite(client string) { n.add(writePath+client, Name{since: time.Now()}, absentFor) }

// Forget removes the numbers of a name.
func (n *Names) Forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := n.names.list(maxNames)
	for _, path := range names.Keys() {
		if shown, _ := names.Peek(path); strings.EqualFold(shown.Text, name) || strings.HasPrefix(strings.ToLower(shown.Text), strings.ToLower(name)+"/") {
			names.Remove(path)
		}
	}
}

// Known returns what the upstream has shown to a caller for a path.
func (n *Names) Known(caller *policy.Caller, path string) (Name, bool) {
	name, ok := n.get(path)
	if !ok {
		name, ok = n.absent(caller, path)
	}
	return name, ok
}

// absentPath returns the key of an object that the client and its credential cannot see.
func absentPath(caller *policy.Caller, path string) string {
	return strings.Join([]string{caller.Client, caller.Class, path}, "\x00")
}
