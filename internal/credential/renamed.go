package credential

import "github.com/weirgate/weir/policy"

// MergeRenamed calls merge for each account of a held credential that had another name in an earlier registry, because the upstream
// counts both names as one account. Without an earlier registry, the credential had the name of a passed-through one.
//
// An account whose credentials get different names, or whose name is that of another account now, is not merged: the earlier
// configuration may have been wrong.
func (r *Registry) MergeRenamed(earlier *Registry, merge func(from, into string, kind policy.CallerKind)) {
	if earlier == nil {
		earlier = &Registry{config: Config{HashKey: r.config.HashKey}}
	}
	type renamed struct {
		into  string
		kind  policy.CallerKind
		split bool
	}
	names, taken := map[string]renamed{}, map[string]bool{}
	for _, h := range r.config.Held {
		from, _ := earlier.nameOf(h)
		into, _ := r.nameOf(h)
		taken[into] = true
		known, again := names[from]
		names[from] = renamed{into, h.Kind, again && (known.split || known.into != into)}
	}
	for from, n := range names {
		if from != n.into && !n.split && !taken[from] {
			merge(from, n.into, n.kind)
		}
	}
	for _, h := range earlier.config.Held {
		name, held := r.nameOf(h)
		if into, _ := earlier.nameOf(h); !held && name != into { // a client may pass the credential
			merge(name, into, h.Kind)
		}
	}
}

// nameOf returns the name of the account of a credential, and whether the registry holds the credential.
func (r *Registry) nameOf(h Held) (name string, held bool) {
	if h.Source == nil {
		_, held = r.accounts[r.hash(h.Token.Reveal())]
		return r.AccountOf(h.Token.Reveal()), held
	}
	for _, own := range r.config.Held {
		if own.Source != nil && own.Source.app.Installation == h.Source.app.Installation {
			return own.Account, true
		}
	}
	return AccountOfInstallation(h.Source.app.Installation), false
}
