package service

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// object is a JSON object whose members keep their order, so that answers
// read like the documents.
type object []field

type field struct {
	name  string
	value any
}

// member is the value of a member; nil where there is none.
func (o object) member(name string) any {
	for _, f := range o {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

// MarshalJSON writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) { return appendJSON(nil, o), nil }

var _ json.Marshaler = object(nil)

// encode writes JSON as the API does: no HTML escapes, no final newline.
func encode(v any) []byte { return appendJSON(make([]byte, 0, 4<<10), v) }

// appendJSON appends a value. What answers are mostly made of is written here,
// several times as fast as by reflection; all else is the library's.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case object:
		return appendMembers(b, v)
	case []object:
		b = append(b, '[')
		for i, o := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendMembers(b, o)
		}
		return append(b, ']')
	case string:
		return appendString(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case bool:
		return strconv.AppendBool(b, v)
	case nil:
		return append(b, "null"...)
	}
	return appendAny(b, v)
}

func appendMembers(b []byte, o object) []byte {
	b = append(b, '{')
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, f.name), ':')
		b = appendJSON(b, f.value)
	}
	return append(b, '}')
}

// appendString writes a string that needs no escapes as it is.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f || s[i] == '"' || s[i] == '\\' {
			return appendAny(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendAny(b []byte, v any) []byte {
	var buffer bytes.Buffer
	e := json.NewEncoder(&buffer)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // our own shapes
	}
	return append(b, bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))...)
}
