package service

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// object is a JSON object with ordered members. Responses have the member order of the documents.
type object []field

type field struct {
	name  string
	value any
}

// member returns the value of a member, or nil if the member does not exist.
func (o object) member(name string) any {
	for _, f := range o {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) { return appendJSON(nil, o), nil }

var _ json.Marshaler = object(nil)

// encode returns the JSON of a value, without HTML escapes and final newline.
func encode(v any) []byte { return appendJSON(make([]byte, 0, 4<<10), v) }

// appendJSON appends the JSON of a value. It writes the common types directly, because reflection is slow. Package json
// encodes all other types.
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

// appendString appends a JSON string. Package json encodes strings that need escapes.
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
		panic(err) // values built by this package always encode
	}
	return append(b, bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))...)
}
