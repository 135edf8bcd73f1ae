package policy

import (
	"slices"
	"time"
)

// GraphQLCache selects the GraphQL queries whose responses are stored. Without Rules and GH no response is stored.
type GraphQLCache struct {
	Rules []GraphQLCacheRule `yaml:"rules" desc:"queries whose responses are stored, by operation or by root field"`
	GH    bool               `yaml:"gh" desc:"store the responses to gh pr list, pr status, pr checks, issue list and repo view for 15s to 1m"`
}

// GraphQLCacheRule stores the responses to some queries. Either Operation or Field is set.
type GraphQLCacheRule struct {
	Operation string        `yaml:"operation" desc:"name of the query; the client chooses it"`
	Field     string        `yaml:"field" desc:"root field, such as repository; all root fields of a query need a rule, and the shortest ttl applies"`
	TTL       time.Duration `yaml:"ttl" desc:"lifetime of a stored response, from 1s to 10m"`
}

// graphQLCacheData is graphqlcache.yaml.
var graphQLCacheData = mustDecode[struct {
	QueryFields []string           `yaml:"query_fields"`
	GH          []GraphQLCacheRule `yaml:"gh"`
}]("graphqlcache.yaml")

// QueryFields returns the root fields for which a rule can store responses. It omits the fields that may report the budget of
// the moment.
func QueryFields() []string { return slices.Clone(graphQLCacheData.QueryFields) }

// maxStoredNames bounds the repositories and node IDs in the arguments of a stored query, because each becomes a tag of
// the response.
const maxStoredNames = 100

// RuleFor returns the rule that stores the response to a call. A rule for the operation takes precedence over rules for
// fields, and configured rules over the rules for gh.
func (c *GraphQLCache) RuleFor(call *GraphQLCall) (rule GraphQLCacheRule, ok bool) {
	if call.Question == "" || slices.ContainsFunc(call.RootFields, reportsBudget) || len(call.Repositories)+len(call.NodeIDs) > maxStoredNames {
		return rule, false
	}
	ofOperation := func(r GraphQLCacheRule) bool { return r.Operation != "" && r.Operation == call.Operation }
	if i := slices.IndexFunc(c.Rules, ofOperation); i >= 0 {
		return c.Rules[i], true
	}
	for _, name := range call.RootFields {
		if name == "__typename" {
			continue
		}
		i := slices.IndexFunc(c.Rules, func(r GraphQLCacheRule) bool { return r.Field == name })
		if i < 0 {
			return c.ghRule(call)
		}
		if !ok || c.Rules[i].TTL < rule.TTL {
			rule, ok = c.Rules[i], true
		}
	}
	return rule, ok
}

// reportsBudget reports whether a root field may report the budget of the moment. The field relay has all root fields.
func reportsBudget(field string) bool { return field == "rateLimit" || field == "relay" }

// ghRule returns the rule for a query of gh.
func (c *GraphQLCache) ghRule(call *GraphQLCall) (rule GraphQLCacheRule, ok bool) {
	if !c.GH {
		return rule, false
	}
	for _, rule := range graphQLCacheData.GH {
		if rule.Operation == call.Operation {
			return rule, true
		}
	}
	return rule, false
}
