// Package quirk makes an HTTP service misbehave as the real API does. A [Set] is the table of all quirks, and a [State]
// applies the quirks of a set to the requests and responses of a service.
//
// The service itself applies the quirks that depend on its state or its meter, such as SecondaryEvery. State applies all
// others from the outside: it changes requests before the service gets them and responses before the client gets them.
package quirk

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Set is the table of all quirks. The tag desc documents a quirk; min and max restrict its value. The zero value
// of a field disables the quirk.
type Set struct {
	Latency         Duration `json:"latency,omitzero" desc:"shortest time before a request is counted"`
	DelayBefore     Duration `json:"delay_before,omitzero" desc:"longest random time before a request is counted"`
	DelayAfter      Duration `json:"delay_after,omitzero" desc:"longest random time between counting and the response header"`
	DelayIsCPU      bool     `json:"delay_is_cpu,omitzero" desc:"these times count as CPU time"`
	SlowBody        Duration `json:"slow_body,omitzero" desc:"time between the first and the second half of a body"`
	TruncateEvery   int      `json:"truncate_every,omitzero" desc:"every Nth body ends in the middle, and with it the connection or the stream"`
	ErrorEvery      int      `json:"error_every,omitzero" desc:"every Nth request fails with error_status; it is counted and has no effect"`
	ErrorStatus     int      `json:"error_status,omitzero" min:"500" max:"599" desc:"status of error_every; the default is 502"`
	ClockOffset     Duration `json:"clock_offset,omitzero" min:"any" desc:"time by which the clock of the service is ahead"`
	IncompleteEvery int      `json:"incomplete_every,omitzero" desc:"every Nth search is incomplete"`
	Endless202      bool     `json:"endless_202,omitzero" desc:"statistics are never completed"`
	LinksByName     bool     `json:"links_by_name,omitzero" desc:"Link has names instead of ids"`

	SecondaryEvery int   `json:"secondary_every,omitzero" desc:"every Nth request gets a secondary limit error, which lasts a minute"`
	LimitAnswers   Forms `json:"limit_answers,omitzero" desc:"limit errors have a random one of these forms"`
	EpisodeEvery   int   `json:"episode_every,omitzero" desc:"every Nth suitable request starts a limit of one of the forms of limit_answers that begin with brief; it concerns only requests of that kind, and the meter does not count it"`

	HeadersBehind   int    `json:"headers_behind,omitzero" desc:"x-ratelimit fields may come from up to N requests earlier"`
	OddRateEvery    int    `json:"odd_rate_every,omitzero" desc:"every Nth response reports an exhausted limit of 60 and another reset"`
	WrongRateOn401  Chance `json:"wrong_rate_on_401,omitzero" desc:"a 401 reports the exhausted limit of an anonymous caller"`
	ResourcesExceed Chance `json:"resource_limits_exceeded,omitzero" desc:"a GraphQL response has the error RESOURCE_LIMITS_EXCEEDED and a part of the data"`

	ETagsPerToken      bool     `json:"etags_per_token,omitzero" desc:"ETags depend on the token"`
	LinkMissingIn304   Chance   `json:"link_missing_in_304,omitzero" desc:"a 304 has no Link"`
	ETagMissingIn304   Chance   `json:"etag_missing_in_304,omitzero" desc:"a 304 has no ETag"`
	ETagOtherStrength  Chance   `json:"etag_other_strength,omitzero" desc:"the ETag of a 304 is weak if that of the 200 is strong, and strong if it is weak"`
	ErrorValidators    Chance   `json:"error_validators,omitzero" desc:"a 404 has an ETag, and a conditional request with this ETag gets a 304, even if the object exists now"`
	ReplicaLag         Duration `json:"replica_lag,omitzero" desc:"for this time after a write or an event, a read returns the state before it, or 404 for a new object"`
	UnfinishedFor      Duration `json:"unfinished_for,omitzero" desc:"for this time after the first read of a state, mergeable is null and completed runs are queued"`
	TokenUnknownFor    Duration `json:"token_unknown_for,omitzero" desc:"for this time, a new installation token gets 401, 403 or 404"`
	PermissionSnapshot Patterns `json:"permission_snapshot,omitzero" desc:"installation tokens that were minted before this quirk was set get 403 for these operations"`
	OldNames           Names    `json:"old_names,omitzero" desc:"requests for a former name of a repository are redirected: 301 for reads, 307 for writes"`
	EndedVersions      Versions `json:"ended_versions,omitzero" desc:"requests for these API versions get 400"`

	GoAwayEvery          int    `json:"goaway_every,omitzero" desc:"every Nth response ends its connection: GOAWAY, or Connection: close over HTTP/1.1"`
	RefusedStream        Chance `json:"refused_stream,omitzero" desc:"the service does not process a request and resets its stream with REFUSED_STREAM; over HTTP/1.1 it closes the connection"`
	ResetAfterProcessing Chance `json:"reset_after_processing,omitzero" desc:"the service processes a request, and resets its stream or closes the connection instead of responding"`
}

// Duration is a time.Duration whose JSON form is a string such as "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Chance selects responses: at random, or those of some operations. Its JSON form is true, a probability or a list.
type Chance struct {
	Probability float64
	Operations  Patterns
}

// MarshalJSON implements json.Marshaler.
func (c Chance) MarshalJSON() ([]byte, error) {
	if c.Operations != nil {
		return json.Marshal(c.Operations)
	}
	return json.Marshal(c.Probability)
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Chance) UnmarshalJSON(text []byte) error {
	*c = Chance{}
	switch string(text) {
	case "true":
		c.Probability = 1
	case "false":
	default:
		if json.Unmarshal(text, &c.Probability) != nil {
			return json.Unmarshal(text, &c.Operations)
		}
	}
	return nil
}

// Patterns are operations, such as "GET /repos/*/*". Each * is one segment of the path, or the method.
type Patterns []string

func (p Patterns) match(method, target string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		wantMethod, wantPath, _ := strings.Cut(pattern, " ")
		ok, _ := path.Match(wantPath, target) // check has refused bad patterns
		return ok && (wantMethod == "*" || wantMethod == method)
	})
}

func (p Patterns) check() error {
	for _, pattern := range p {
		_, target, ok := strings.Cut(pattern, " ")
		if _, err := path.Match(target, ""); err != nil || !ok || !strings.HasPrefix(target, "/") {
			return fmt.Errorf(`%q: must be a method and a path such as "GET /repos/*/*"`, pattern)
		}
	}
	return nil
}

// Forms are names of forms of limit errors. The JSON form of all is true.
type Forms []string

// UnmarshalJSON implements json.Unmarshaler.
func (f *Forms) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case "true":
		*f = formNames()
		return nil
	case "false":
		text = []byte("null")
	}
	return json.Unmarshal(text, (*[]string)(f))
}

// Names maps former full names of repositories to the current ones.
type Names map[string]string

// Versions are versions of the API.
type Versions []string

// kinds describes the JSON values of each type of a field.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[bool]():     "true or false",
	reflect.TypeFor[int]():      "a number",
	reflect.TypeFor[Duration](): `a duration such as "1.5s"`,
	reflect.TypeFor[Chance]():   `true, a probability from 0 to 1, or a list of operations such as "GET /repos/*/*"`,
	reflect.TypeFor[Patterns](): `a list of operations such as "GET /repos/*/*"`,
	reflect.TypeFor[Forms]():    "true or a list of forms",
	reflect.TypeFor[Names]():    `an object such as {"acme/old": "acme/widgets"}`,
	reflect.TypeFor[Versions](): `a list of versions such as "2022-11-28"`,
}

// These values bound durations and, unless a tag does, numbers.
const (
	maxDelay = Duration(time.Hour)
	maxEvery = 1_000_000
)

// fields returns the fields of Set by name, in the order of the table.
func fields() (names []string, byName map[string]reflect.StructField) {
	byName = map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Set]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names, byName[name] = append(names, name), f
	}
	return names, byName
}

// removed are former quirks, and what replaces them.
var removed = map[string]string{
	"limit_status":   `"limit_answers": ["rest_429"]`,
	"no_retry_after": `"limit_answers": ["rest_403_without_retry_after"]`,
	"remaining_zero": `"limit_answers": ["rest_403_remaining_0"]`,
}

// Parse reads the JSON form of quirks. Members that the text omits keep the values of inForce. An error names the
// invalid member.
func Parse(text []byte, inForce Set) (Set, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return Set{}, fmt.Errorf("quirks must be one JSON object: %w", err)
	}
	names, byName := fields()
	set := reflect.ValueOf(&inForce).Elem()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		f, ok := byName[name]
		if removed[name] != "" {
			return Set{}, fmt.Errorf("%s: was removed; use %s", name, removed[name])
		}
		if !ok {
			return Set{}, fmt.Errorf("%s: unknown quirk; must be one of %s", name, strings.Join(names, ", "))
		}
		value := reflect.New(f.Type)
		if json.Unmarshal(members[name], value.Interface()) != nil {
			return Set{}, fmt.Errorf("%s: %s: must be %s", name, members[name], kinds[f.Type])
		}
		if err := check(f.Tag, value.Elem().Interface()); err != nil {
			return Set{}, fmt.Errorf("%s: %w", name, err)
		}
		set.FieldByIndex(f.Index).Set(value.Elem())
	}
	return inForce, nil
}

// check returns an error for a value outside the range of its type and tags.
func check(tag reflect.StructTag, value any) error {
	switch v := value.(type) {
	case Duration:
		if tag.Get("min") != "any" && (v < 0 || v > maxDelay) {
			return fmt.Errorf("%v: must be 0s to %v", time.Duration(v), time.Duration(maxDelay))
		}
	case int:
		low, _ := strconv.Atoi(tag.Get("min")) // 0 without a tag
		high, _ := strconv.Atoi(tag.Get("max"))
		if high = cmp.Or(high, maxEvery); v != 0 && (v < low || v > high) {
			return fmt.Errorf("%d: must be %d to %d", v, low, high)
		}
	case Patterns:
		return v.check()
	case Chance:
		if v.Probability < 0 || v.Probability > 1 {
			return fmt.Errorf("%v: must be 0 to 1", v.Probability)
		}
		return v.Operations.check()
	case Forms:
		for _, name := range v {
			if !slices.Contains(formNames(), name) {
				return fmt.Errorf("%q: unknown form; must be one of %s", name, strings.Join(formNames(), ", "))
			}
		}
	case Names:
		for from, to := range v {
			if strings.Count(from, "/") != 1 || strings.Count(to, "/") != 1 {
				return fmt.Errorf("%q: %q: must be OWNER/NAME", from, to)
			}
		}
	}
	return nil
}
