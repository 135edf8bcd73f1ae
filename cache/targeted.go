package cache

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/dunglas/httpsfv"
)

// targets are the fields that speak to caches like this one, before Cache-Control
// and Expires (RFC 9213 section 2.2); the first that is there counts.
var targets = []string{"Cdn-Cache-Control", "Surrogate-Control"}

// governing are the directives of an answer that this cache goes by, and whether
// they are for caches like it. A targeted field that is empty or cannot be read says
// nothing (RFC 9213 section 2.1).
func governing(h http.Header) (d Directives, targeted bool) {
	for _, name := range targets {
		if len(h[name]) == 0 {
			continue
		}
		dictionary, err := httpsfv.UnmarshalDictionary(h[name])
		if err != nil || len(dictionary.Names()) == 0 {
			continue
		}
		d = Directives{}
		for _, directive := range dictionary.Names() {
			member, _ := dictionary.Get(directive)
			if item, ok := member.(httpsfv.Item); ok {
				targetedDirective(d, directive, item, name)
			}
		}
		return d, true
	}
	return ParseDirectives(h["Cache-Control"]), false
}

// surrogate is this cache's name in Surrogate-Control, as Surrogate-Capability tells
// it to the upstream (Edge Architecture Specification sections 2.2 and 2.3).
const surrogate = "weir"

// targetedDirective takes in one directive. In Surrogate-Control a parameter names
// the cache that it is for.
func targetedDirective(d Directives, name string, item httpsfv.Item, field string) {
	if named := item.Params.Names(); field == "Surrogate-Control" && len(named) > 0 && !slices.Contains(named, surrogate) {
		return
	}
	switch value := item.Value.(type) {
	case bool:
		if value {
			d[name] = ""
		}
	case int64:
		d[name] = strconv.FormatInt(value, 10)
	case string:
		d[name] = value
	case httpsfv.Token:
		d[name] = string(value)
	}
}
