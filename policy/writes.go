package policy

// WriteLimits bound the requests that may change something. Zero is no limit. The limits are those of an operator, so they have
// no headroom, and a ledger assumes no writes before its start.
type WriteLimits struct {
	PerMinute int `yaml:"per_minute" desc:"writes in any minute; 0 for no limit"`
	PerHour   int `yaml:"per_hour" desc:"writes in any hour; 0 for no limit"`
}

// ClientWrites are the limits of a client, and those of its requests with one tag.
type ClientWrites struct{ Client, Tag WriteLimits }

// Writes reports whether a call may change something. For GraphQL, the body decides ([Operation.ForCall]).
func (o *Operation) Writes() bool {
	if o.Resource == GraphQL {
		return o.CreatesContent
	}
	return !o.Safe() && !o.ReadsOnly
}
