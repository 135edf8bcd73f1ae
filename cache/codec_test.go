package cache

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func newCodec(t testing.TB, secret string) *Codec {
	t.Helper()
	c, err := NewCodec([]byte(secret))
	noError(t, err)
	return c
}

// encoded returns the stored value of an entry.
func encoded(t testing.TB, c *Codec, e *Entry) []byte {
	t.Helper()
	value, err := c.Encode(NewKey("a"), e)
	noError(t, err)
	return value
}

const secret = "a secret of thirty-two characters"

// sampleEntry returns an entry with a value in every field.
func sampleEntry(body string) *Entry {
	now := time.Unix(1_700_000_000, 5).UTC()
	h := http.Header{"Etag": {`W/"a"`}, "Link": {"<a>", "<b>"}, "Age": {"12"}}
	e := NewEntry(Response{Status: 404, Header: h, Requested: now, Answered: now.Add(time.Second)}, []byte(body), time.Minute)
	e.Vary = []Field{{"Accept-Language", "de", false}, {"Accept-Charset", "", true}}
	e.Tags, e.Since, e.BaseKey = []string{"repo:o/r"}, 1<<60, NewKey("base")
	return e
}

func TestDecodeReturnsTheEncodedEntry(t *testing.T) {
	for _, secret := range []string{"", secret} {
		for _, body := range []string{"", "short", strings.Repeat("long ", 10_000)} {
			c, key, e := newCodec(t, secret), NewKey("a"), sampleEntry(body)
			value := encoded(t, c, e)
			got, err := c.Decode(key, value)
			noError(t, err)
			diff := cmp.Diff(e, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Entry{}))
			failIf(t, diff != "", "encoded (-), decoded (+):\n%s", diff)
			failIf(t, len(body) > 1<<10 && len(value) > len(body)/4, "got a value of %d bytes for a body of %d repeated bytes", len(value), len(body))
			for _, other := range []string{"another secret of thirty-two char.", "", secret} {
				_, err := newCodec(t, other).Decode(key, value)
				failIf(t, other == secret && err != nil || other != secret && !errors.Is(err, ErrValue), "encoded with secret %q, decoded with %q: %v", secret, other, err)
			}
			if _, err := c.Decode(NewKey("b"), value); !errors.Is(err, ErrValue) {
				t.Errorf("decoded under another key: %v", err)
			}
		}
	}
}

// The age of a decoded entry does not depend on later steps of the clock. An entry from before a step back is stale.
func TestDecodedEntryAgesWithTheMonotonicClock(t *testing.T) {
	for ago, age := range map[time.Duration]time.Duration{2 * time.Minute: 2 * time.Minute, 0: 0, -maxSkew / 2: 0, -24 * time.Hour: longestTime} {
		c, key, now := newCodec(t, ""), NewKey("a"), time.Now()
		r := Response{Status: 200, Header: http.Header{}, Requested: now.Add(-ago), Answered: now.Add(-ago)}
		e, err := c.Decode(key, encoded(t, c, NewEntry(r, nil, time.Hour)))
		noError(t, err)
		if !strings.Contains(e.Answered.String(), " m=") || (e.Age(time.Now())-age).Abs() > time.Minute {
			t.Errorf("stored %v ago: got %v and age %v, want a monotonic time and age %v", ago, e.Answered, e.Age(now), age)
		}
	}
}

// A changed bit causes an error, except for a reserved bit, which zstd ignores.
func TestDecodeRejectsChangedAndTruncatedValues(t *testing.T) {
	for _, secret := range []string{"", secret} {
		c, key, e := newCodec(t, secret), NewKey("a"), sampleEntry(strings.Repeat("long ", 300))
		value := encoded(t, c, e)
		for i := range value {
			for bit := range 8 {
				changed := slices.Clone(value)
				changed[i] ^= 1 << bit
				got, err := c.Decode(key, changed)
				stopIf(t, err == nil && (secret != "" || !cmp.Equal(e, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Entry{}))) || err != nil && !errors.Is(err, ErrValue), "byte %d of %d, bit %d: %v", i, len(value), bit, err)
			}
			_, err := c.Decode(key, value[:i])
			stopIf(t, !errors.Is(err, ErrValue), "the first %d bytes: %v", i, err)
		}
	}
}

// Field values may contain bytes that are not UTF-8 (RFC 9110 section 5.5). JSON would change these bytes.
func TestEncodeRejectsFieldsThatAreNotUTF8(t *testing.T) {
	inHeader, inVary := sampleEntry(""), sampleEntry("")
	inHeader.Header["Etag"] = []string{"\"caf\xe9\""}
	inVary.Vary[0].Value = "\xff"
	for _, e := range []*Entry{inHeader, inVary} {
		value, err := newCodec(t, "").Encode(NewKey("a"), e)
		failIf(t, err == nil, "got value %q, want an error", value)
	}
}

func FuzzDecode(f *testing.F) {
	open, sealed := newCodec(f, ""), newCodec(f, secret)
	for _, body := range []string{"", "short", strings.Repeat("long ", 1000)} {
		for _, c := range []*Codec{open, sealed} {
			f.Add(encoded(f, c, sampleEntry(body)))
		}
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, c := range []*Codec{open, sealed} {
			e, err := c.Decode(NewKey("a"), value)
			failIf(t, err != nil && !errors.Is(err, ErrValue) || err == nil && e == nil, "got entry %v and error %v, want exactly one of them", e, err)
		}
	})
}

// FuzzVary checks that only the field values of the fetching request select an entry with Vary (RFC 9111
// section 4.1).
func FuzzVary(f *testing.F) {
	f.Add("Accept-Language, X-Thing", "de", "fr")
	f.Add("*", "a", "b")
	f.Add(", ,accept-language", "", "b")
	f.Fuzz(func(t *testing.T, vary, value, other string) {
		request := http.Header{"Accept-Language": {value}}
		fields, ok := VaryFields(http.Header{"Vary": {vary}}, request, []string{"Accept"})
		if !ok {
			failIf(t, !strings.Contains(vary, "*"), "%q is read as *", vary)
			return
		}
		e := &Entry{Vary: fields}
		failIf(t, !e.Selects(request), "%q: the fetching request does not select the entry", vary)
		named := slices.ContainsFunc(fields, func(f Field) bool { return f.Name == "Accept-Language" })
		letters := func(s string) string { // the normal form changes only the case and the order
			list := strings.Split(strings.NewReplacer(" ", "", "\t", "").Replace(strings.ToLower(s)), "")
			slices.Sort(list)
			return strings.Join(list, "")
		}
		failIf(t, named && letters(value) != letters(other) && e.Selects(http.Header{"Accept-Language": {other}}), "%q: value %q selects the entry fetched with %q", vary, other, value)
	})
}

// A writer to the shared tier must not decide how responses are framed.
func TestDecodeRejectsEntriesThatCannotBeStored(t *testing.T) {
	for _, c := range []struct {
		status            int
		name, value, body string
		want              error
	}{
		{200, "X-A_b.1", "b", "body", nil}, {422, "X-A", "b", "", nil}, {202, "X-A", "b", "", nil}, {204, "X-A", "b", "", nil},
		{200, "A b", "b", "", ErrValue}, {200, "", "b", "", ErrValue}, {200, "Ä", "b", "", ErrValue},
		{200, "content-length", "b", "", ErrValue}, {200, "Transfer-Encoding", "b", "", ErrValue},
		{200, "Connection", "b", "", ErrValue}, {200, "Age", "b", "", ErrValue}, {200, "X-Ratelimit-Used", "b", "", ErrValue},
		{200, "X-A", "b\r\nSet-Cookie: c", "", ErrValue},
		{204, "X-A", "b", "HTTP/1.1 200 OK", ErrValue}, {100, "X-A", "b", "", ErrValue}, {401, "X-A", "b", "", ErrValue}, {600, "X-A", "b", "", ErrValue},
	} {
		codec, key := newCodec(t, ""), NewKey("a")
		value := encoded(t, codec, &Entry{Status: c.status, Header: http.Header{c.name: {c.value}}, Body: []byte(c.body)})
		_, err := codec.Decode(key, value)
		failIf(t, !errors.Is(err, c.want), "%d, %q, %q: %v, want %v", c.status, c.name, c.body, err, c.want)
	}
}
