package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// usual is how many algorithms an issuer has that nobody thought about.
const usual = 2

var (
	// anyone is a pattern that tells nobody from anybody: at most what kind of name it is.
	anyone = regexp.MustCompile(`^([A-Za-z_]+:)?\*+$`)
	// within is a pattern that ends in the middle of a name.
	within = regexp.MustCompile(`^[^*]*[A-Za-z0-9]\*`)
)

// everybody reports whether every token that an issuer makes for this gateway is the
// client's: none of its claims is one by which tokens differ.
func everybody(c Client) bool {
	for name, pattern := range c.JWT.Claims {
		if name != "iss" && name != "aud" && !anyone.MatchString(pattern) {
			return false
		}
	}
	return len(c.JWT.Claims) > 0
}

// alike reports whether others than those who were meant may have a name that fits
// the subject.
func alike(c Client) bool { return within.MatchString(c.JWT.Claims["sub"]) }

// eachIssuer is a risk of every issuer, at the key below it.
func eachIssuer(key string, when func(Issuer) bool) func(AuditedFile) []string {
	return func(f AuditedFile) (keys []string) {
		for i, issuer := range f.Config.Issuers {
			if when(issuer) {
				keys = append(keys, fmt.Sprintf("issuers[%d]%s", i, key))
			}
		}
		return keys
	}
}

// itself reports whether tokens count that are for the issuer, such as every program
// has that signs in with it.
func itself(i Issuer) bool {
	same := func(audience string) bool { return strings.TrimSuffix(audience, "/") == strings.TrimSuffix(i.URL, "/") }
	return slices.ContainsFunc(i.Audiences, same)
}
