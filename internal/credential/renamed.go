package credential

import (
	"strings"

	"github.com/weirgate/weir/policy"
)

// MergeRenamed calls merge for each account of a held credential that had another name in an earlier registry, because the upstream
// counts both names as one account. Without an earlier registry, the credential had the name of a passed-through one.
func (r *Registry) MergeRenamed(earlier *Registry, merge func(from, into string, kind policy.CallerKind)) {
	if earlier == nil {
		earlier = &Registry{config: Config{HashKey: r.config.HashKey}}
	}
	r.mergeFormer(func(h Held) []string {
		name, _ := earlier.nameOf(h)
		return []string{name}
	}, merge)
	for _, h := range earlier.config.Held {
		name, held := r.nameOf(h)
		if into, _ := earlier.nameOf(h); !held && name != into { // a client may pass the credential
			merge(name, into, h.Kind)
		}
	}
}

// Names returns a text for each held credential: its kind, the name of its account without a configuration, and the name of its
// account.
func (r *Registry) Names() (texts []string) {
	for _, h := range r.config.Held {
		name, _ := r.nameOf(h)
		texts = append(texts, strings.Join([]string{string(h.Kind), r.unnamed(h), name}, " "))
	}
	return texts
}

// MergeStored is like MergeRenamed for the texts that Names has returned in other processes.
func (r *Registry) MergeStored(texts []string, merge func(from, into string, kind policy.CallerKind)) {
	former, held := map[string][]string{}, map[string]bool{}
	for _, h := range r.config.Held {
		held[r.unnamed(h)] = true
	}
	for _, text := range texts {
		fields := strings.SplitN(text, " ", 3)
		if len(fields) < 3 {
			continue
		}
		kind, unnamed, name := policy.CallerKind(fields[0]), fields[1], fields[2]
		former[unnamed] = append(former[unnamed], name)
		if !held[unnamed] && unnamed != name { // a client may pass the credential
			merge(unnamed, name, kind)
		}
	}
	r.mergeFormer(func(h Held) []string { return former[r.unnamed(h)] }, merge)
}

// mergeFormer calls merge for each former name of the account of a held credential. An account whose credentials get different names,
// or whose name is that of another account now, is not merged: the former configuration may have been wrong.
func (r *Registry) mergeFormer(former func(h Held) []string, merge func(from, into string, kind policy.CallerKind)) {
	type renamed struct {
		into  string
		kind  policy.CallerKind
		split bool
	}
	names, taken := map[string]renamed{}, map[string]bool{}
	for _, h := range r.config.Held {
		into, _ := r.nameOf(h)
		taken[into] = true
		for _, from := range former(h) {
			known, again := names[from]
			names[from] = renamed{into, h.Kind, again && (known.split || known.into != into)}
		}
	}
	for from, n := range names {
		if from != n.into && !n.split && !taken[from] {
			merge(from, n.into, n.kind)
		}
	}
}

// unnamed returns the name that the account of a credential has without a configuration.
func (r *Registry) unnamed(h Held) string {
	if h.Source == nil {
		return r.hash(h.Token.Reveal())
	}
	return AccountOfInstallation(h.Source.app.Installation)
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
	return r.unnamed(h), false
}
