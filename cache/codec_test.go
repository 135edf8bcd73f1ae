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

func codec(t testing.TB, secret string) *Codec {
	c, err := NewCodec([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sampled is an entry with something in every field.
func sampled(body string) *Entry {
	now := time.Unix(1_700_000_000, 5).UTC()
	e := NewEntry(Response{Status: 404, Header: http.Header{"Etag": {`W/"a"`}, "Link": {"<a>", "<b>"}, "Age": {"12"}}, Requested: now, Answered: now.Add(time.Second)}, []byte(body), time.Minute)
	e.Vary, e.tags, e.Since = []Field{{"Accept-Language", "de", false}, {"Accept-Charset", "", true}}, newTags([]string{"repo:o/r"}), 1<<60
	return e
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	for _, secret := range []string{"", "a secret of thirty-two characters"} {
		for _, body := range []string{"", "short", strings.Repeat("long ", 10_000)} {
			c, key, e := codec(t, secret), NewKey("a"), sampled(body)
			value, err := c.Encode(key, e)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Decode(key, value)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(e, got, cmp.AllowUnexported(Entry{}, fields{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("encoded (-), decoded (+):\n%s", diff)
			}
			if len(body) > packFrom && len(value) > len(body)/4 {
				t.Errorf("%d bytes for %d of one word", len(value), len(body))
			}
			for _, other := range []*Codec{codec(t, "another secret of thirty-two char."), codec(t, strings.Repeat("x", 32-len(secret)%32))} {
				if _, err := other.Decode(key, value); secret != "" && !errors.Is(err, ErrValue) {
					t.Errorf("read with another secret: %v", err)
				}
			}
			if _, err := c.Decode(NewKey("b"), value); !errors.Is(err, ErrValue) {
				t.Errorf("read under another key: %v", err)
			}
		}
	}
}

// TestAttack42AValueThatWasChangedIsNoValue, wherever it was, and however it was cut.
func TestAttack42AValueThatWasChangedIsNoValue(t *testing.T) {
	for _, secret := range []string{"", "a secret of thirty-two characters"} {
		c, key := codec(t, secret), NewKey("a")
		value, err := c.Encode(key, sampled(strings.Repeat("long ", 300)))
		if err != nil {
			t.Fatal(err)
		}
		for i := range value {
			changed := slices.Clone(value)
			changed[i] ^= 1 << (i % 8)
			if _, err := c.Decode(key, changed); !errors.Is(err, ErrValue) {
				t.Fatalf("byte %d of %d: %v", i, len(value), err)
			}
			if _, err := c.Decode(key, value[:i]); !errors.Is(err, ErrValue) {
				t.Fatalf("the first %d bytes: %v", i, err)
			}
		}
	}
}

// TestWhatIsNotTextIsNotEncoded: fields may hold any bytes (RFC 9110 section 5.5).
func TestWhatIsNotTextIsNotEncoded(t *testing.T) {
	byHeader, byVary := sampled(""), sampled("")
	byHeader.fields.own = "Etag: \"caf\xe9\"\n"
	byVary.Vary[0].Value = "\xff"
	for _, e := range []*Entry{byHeader, byVary} {
		if value, err := codec(t, "").Encode(NewKey("a"), e); err == nil {
			t.Errorf("encoded as %q: it would be read as something else", value)
		}
	}
}

func FuzzDecode(f *testing.F) {
	open, sealed := codec(f, ""), codec(f, "a secret of thirty-two characters")
	for _, body := range []string{"", "short", strings.Repeat("long ", 1000)} {
		for _, c := range []*Codec{open, sealed} {
			value, err := c.Encode(NewKey("a"), sampled(body))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(value)
		}
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, c := range []*Codec{open, sealed} {
			e, err := c.Decode(NewKey("a"), value)
			if err != nil && !errors.Is(err, ErrValue) || err == nil && e == nil {
				t.Errorf("%v, %v", e, err)
			}
		}
	})
}

// FuzzNewKey: lists of parts that differ never have one key.
func FuzzNewKey(f *testing.F) {
	f.Add("ab|c", "a|bc")
	f.Add("|", "")
	f.Add("a|", "a")
	f.Fuzz(func(t *testing.T, a, b string) {
		one, other := strings.Split(a, "|"), strings.Split(b, "|")
		if same := NewKey(one...) == NewKey(other...); same != slices.Equal(one, other) {
			t.Errorf("%q and %q: one key: %v", one, other, same)
		}
	})
}

// FuzzVary: what an answer varies by selects it for the request that fetched it, and
// for no other value (RFC 9111 section 4.1).
func FuzzVary(f *testing.F) {
	f.Add("Accept-Language, X-Thing", "de", "fr")
	f.Add("*", "a", "b")
	f.Add(", ,accept-language", "", "b")
	f.Fuzz(func(t *testing.T, vary, value, other string) {
		request := http.Header{"Accept-Language": {value}}
		fields, ok := VaryFields(http.Header{"Vary": {vary}}, request, []string{"Accept"})
		if !ok {
			if !strings.Contains(vary, "*") {
				t.Errorf("%q varies by everything", vary)
			}
			return
		}
		e := &Entry{Vary: fields}
		if !e.Selects(request) {
			t.Errorf("%q: its own request does not select it", vary)
		}
		named := slices.ContainsFunc(fields, func(f Field) bool { return f.Name == "Accept-Language" })
		if named && value != other && e.Selects(http.Header{"Accept-Language": {other}}) {
			t.Errorf("%q: %q selects what %q has fetched", vary, other, value)
		}
	})
}

// TestWhatWouldNotBeKeptIsNotDecoded: whoever writes to the tier that replicas share would say
// by it how answers are framed, and what they say of the gateway.
func TestWhatWouldNotBeKeptIsNotDecoded(t *testing.T) {
	for _, c := range []struct {
		status     int
		name, body string
		want       error
	}{
		{200, "X-A_b.1", "body", nil}, {422, "X-A", "", nil}, {202, "X-A", "", nil}, {204, "X-A", "", nil},
		{200, "A b", "", ErrValue}, {200, "", "", ErrValue}, {200, "Ä", "", ErrValue}, {200, "content-length", "", ErrValue},
		{200, "Transfer-Encoding", "", ErrValue}, {200, "Connection", "", ErrValue}, {200, "Age", "", ErrValue}, {200, "X-Ratelimit-Used", "", ErrValue},
		{204, "X-A", "HTTP/1.1 200 OK", ErrValue}, {100, "X-A", "", ErrValue}, {500, "X-A", "", ErrValue},
	} {
		codec, key := codec(t, ""), NewKey("a")
		value, err := codec.Encode(key, &Entry{Status: c.status, fields: newFields(http.Header{c.name: {"b"}}), Body: []byte(c.body)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := codec.Decode(key, value); !errors.Is(err, c.want) {
			t.Errorf("%d, %q, %q: %v, want %v", c.status, c.name, c.body, err, c.want)
		}
	}
}
