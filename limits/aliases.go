package limits

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxAliases bounds the aliases of one ledger. The least recently used alias is removed first.
	maxAliases = 16384
	// aliasKept is the time after its last use for which an alias remains.
	aliasKept = 24 * 3600 * second
	// aliasRenewed is the precision of the time of the last use.
	aliasRenewed = 60 * second
)

// Aliases contains the names of merged accounts. An alias is another name of an account, whose own name is the canonical
// name. The zero value is empty and ready for use. Aliases is not safe for concurrent use.
type Aliases struct {
	list *simplelru.LRU[string, alias] // by name; nil without aliases
}

// alias is the value of one alias. Into is a name that may be an alias itself. The links contain no cycle, because
// [Aliases.Add] links only canonical names.
type alias struct {
	Into string
	Used int64 // on the clock of the ledger
}

// Canonical returns the canonical name of an account.
func (s *Aliases) Canonical(name string, now int64) string {
	if s.list == nil || s.list.Len() == 0 {
		return name
	}
	var stale []string
	root := name
	for {
		a, ok := s.list.Get(root)
		if !ok {
			break
		}
		if now-a.Used > aliasKept {
			s.list.Remove(root)
			break
		}
		if _, chained := s.list.Get(a.Into); chained || now-a.Used > aliasRenewed {
			stale = append(stale, root)
		}
		root = a.Into
	}
	for _, alias := range stale {
		s.link(alias, root, now)
	}
	return root
}

// Add makes the first account another name of the second account. It returns the canonical names that both accounts had.
// merged is false if both accounts were one account already.
func (s *Aliases) Add(from, into string, now int64) (oldName, newName string, merged bool) {
	from, into = s.Canonical(from, now), s.Canonical(into, now)
	if from == into {
		return from, into, false
	}
	s.link(from, into, now)
	return from, into, true
}

// AddShared is like Add for a link that another replica has stored. Replicas with different configurations may link two accounts in both
// directions. The lesser name is then the canonical name at all replicas.
func (s *Aliases) AddShared(from, into string, now int64) {
	if _, canonical, merged := s.Add(from, into, now); !merged && canonical == from && into < from {
		s.list.Remove(into)
		s.link(from, into, now)
	}
}

func (s *Aliases) link(name, into string, now int64) {
	if s.list == nil {
		s.list, _ = simplelru.NewLRU[string, alias](maxAliases, nil) // fails only for a size below 1
	}
	s.list.Add(name, alias{into, now})
}

// saved returns the aliases for a snapshot, the least recently used alias first. The next process counts the time since the last use
// from its start.
func (s *Aliases) saved() (all [][2]string) {
	if s.list == nil {
		return nil
	}
	for _, name := range s.list.Keys() {
		a, _ := s.list.Peek(name)
		all = append(all, [2]string{name, a.Into})
	}
	return all
}
