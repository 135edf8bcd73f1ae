package proxy

import (
	"net/http"
	"strconv"
	"strings"
)

// fields is where the fields of an answer go.
type fields interface {
	// add puts a line behind those of the same name, set in their place.
	add(name, value string)
	set(name, value string)
	number(name string, n int)
	// budget is a list of one item, named as the resource, with two parameters.
	budget(name, resource, first string, n int, second string, m int)
}

// headerFields are those of net/http. Values stand together: each by itself would be an
// allocation.
type headerFields struct {
	header http.Header
	values []string
	copies strings.Builder // of values that are an entry's; without room there are none
}

// inHeader has room for so many lines at once; more cost more allocations.
func inHeader(h http.Header, lines int) *headerFields {
	return &headerFields{header: h, values: make([]string, 0, lines)}
}

// entryInHeader copies the values of lines, for one that lies in an entry must not keep that for
// as long as a connection lasts.
func entryInHeader(h http.Header) *headerFields {
	f := inHeader(h, mostLines)
	f.copies.Grow(mostText)
	return f
}

// How many lines Weir itself adds, and how many, and of how many bytes, most answers have with them.
const (
	ownLines  = 10
	mostLines = 32
	mostText  = 512
)

func (f *headerFields) one(value string) []string {
	f.values = append(f.values, value)
	return f.values[len(f.values)-1 : len(f.values) : len(f.values)]
}

func (f *headerFields) add(name, value string) {
	if f.copies.Cap() > 0 {
		begin := f.copies.Len()
		f.copies.WriteString(value)
		value = f.copies.String()[begin:]
	}
	if before := f.header[name]; len(before) > 0 {
		f.header[name] = append(before, value)
		return
	}
	f.header[name] = f.one(value)
}

func (f *headerFields) set(name, value string) { f.header[name] = f.one(value) }

func (f *headerFields) number(name string, n int) { f.set(name, strconv.Itoa(n)) }

func (f *headerFields) budget(name, resource, first string, n int, second string, m int) {
	var room [64]byte
	f.set(name, string(appendBudget(room[:0], resource, first, n, second, m)))
}

func appendBudget(b []byte, resource, first string, n int, second string, m int) []byte {
	b = append(strconv.AppendQuote(b, resource), first...)
	b = append(strconv.AppendInt(b, int64(n), 10), second...)
	return strconv.AppendInt(b, int64(m), 10)
}

// textFields are those of a hit as they are sent, for who is answered at once: a header made
// and sorted first takes a tenth of a hit, and numbers that are made into texts as much where
// each of many accounts has its own. An entry has no fields of the names that are set.
type textFields struct {
	g    *Gateway
	ex   *exchange
	text []byte
}

func (f *textFields) add(name, value string) {
	switch name {
	case "Location":
		value = f.g.local(f.ex, value)
	case "Link":
		value = f.g.localLinks(f.ex, value)
	}
	f.set(name, value)
}

func (f *textFields) set(name, value string) {
	if strings.IndexByte(value, '\r') >= 0 || strings.IndexByte(value, '\n') >= 0 {
		value = oneLine.Replace(value) // as net/http does
	}
	f.text = append(append(f.begun(name), value...), "\r\n"...)
}

var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

func (f *textFields) number(name string, n int) {
	f.text = append(strconv.AppendInt(f.begun(name), int64(n), 10), "\r\n"...)
}

func (f *textFields) budget(name, resource, first string, n int, second string, m int) {
	f.text = append(appendBudget(f.begun(name), resource, first, n, second, m), "\r\n"...)
}

func (f *textFields) begun(name string) []byte { return append(append(f.text, name...), ": "...) }
