package policy

import (
	"net/url"
	"slices"
	"strings"
)

// search adds the names in a search. The search must certainly stay inside what its qualifiers name, however the upstream reads
// the query.
func (n *naming) search(qualifiers []string) {
	values, err := url.ParseQuery(n.match.Query)
	if err != nil {
		n.fail("its query cannot be read")
		return
	}
	parameter := "q"
	if len(qualifiers) == 0 {
		parameter = "repository_id"
	}
	for name := range values {
		letters := strings.TrimLeftFunc(lower(decodeFully(name)), isNoLetter) // some servers ignore brackets and blanks before a name
		if name != parameter && strings.HasPrefix(letters, parameter) {
			n.fail("the parameter %.50q may replace %s", name, parameter)
		}
	}
	switch list := values[parameter]; {
	case len(list) != 1:
		n.fail("the search needs %s once", parameter)
	case len(qualifiers) == 0:
		n.repositoryID(list[0])
	default:
		n.searchQuery(list[0], qualifiers)
		n.Followed = n.Repositories
	}
}

// scoping are the qualifiers that choose what is searched. Several of them add to each other.
var scoping = []string{"repo", "org", "user", "owner", "enterprise", "repository"}

func (n *naming) searchQuery(q string, qualifiers []string) {
	if strings.ContainsFunc(q, func(r rune) bool { return r < ' ' || r > '~' && isOddSpace(r) }) || strings.Contains(q, `\`) || strings.Count(q, `"`)%2 == 1 {
		n.fail("the search has control characters, a backslash or an open quotation mark")
		return
	}
	isScoped := false
	for _, t := range ParseSearch(q) {
		text := strings.TrimPrefix(t.source, "-")
		value := text
		if t.Name != "" {
			_, value, _ = strings.Cut(text, ":")
		}
		checked := text // for other qualifiers
		if slices.Contains(scoping, t.Name) {
			checked = value
		}
		switch {
		case t.Operator == "OR", t.Operator == "NOT", slices.Contains([]string{"or", "not"}, lower(t.source)):
			n.fail("the search has %s, which may lead outside of its qualifiers; send several searches, or use a minus sign or quotation marks", t.source)
		case !isPhrase(t.source) && strings.ContainsAny(t.source, "()"):
			n.fail("the search has parentheses outside of quotation marks")
		case strings.HasPrefix(value, "/") && (t.Name == "" || !isScoped): // a regular expression may hide what follows
			n.fail("the search has a regular expression before its first %s", listQualifiers(qualifiers))
		case namesScope(checked):
			n.fail("%.100q may be a qualifier; remove it", t.source)
		case strings.Contains(value, `"`) && !isPhrase(value):
			n.fail("%.100q has text beside quotation marks; put a blank between them", t.source)
		case !slices.Contains(scoping, t.Name), t.Negated:
		case !slices.Contains(qualifiers, t.Name):
			n.fail("the qualifier %s: is not supported with a scope; use %s", t.Name, listQualifiers(qualifiers))
		case t.Name == "repo":
			n.repository(t.Value)
			isScoped = isScoped || t.source == "repo:"+t.Value
		case !isOwner(t.Value):
			n.fail("%.100q is not the name of an organization or a user", t.Value)
		default:
			n.Whole = append(n.Whole, lower(t.Value))
			isScoped = isScoped || t.source == t.Name+":"+t.Value
		}
	}
	if !isScoped {
		n.fail("the search has no qualifier %s; add one, such as repo:OWNER/NAME, in lower case and without quotation marks", listQualifiers(qualifiers))
	}
}

// isPhrase reports whether a token is a phrase in quotation marks.
func isPhrase(source string) bool {
	source = strings.TrimPrefix(source, "-")
	return len(source) > 1 && source[0] == '"' && strings.IndexByte(source[1:], '"') == len(source)-2
}

// namesScope reports whether a token holds a scoping qualifier, which another parser may find.
func namesScope(source string) bool {
	return slices.ContainsFunc(scoping, func(name string) bool { return strings.Contains(lower(source), name+":") })
}

// isOddSpace reports whether a character may separate tokens for one parser and not for another.
func isOddSpace(r rune) bool {
	return r == 0x7f || r == 0x85 || r == 0xa0 || r == 0x1680 || r == 0x180e || 0x2000 <= r && r <= 0x200f || 0x2028 <= r && r <= 0x202f ||
		0x205f <= r && r <= 0x2064 || r == 0x3000 || r == 0xfeff || r == 0xff1a || r == 0x201c || r == 0x201d || r == 0xfffd
}

func listQualifiers(qualifiers []string) string { return strings.Join(qualifiers, ":, ") + ":" }
