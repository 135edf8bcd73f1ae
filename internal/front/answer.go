package front

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// requests are what requests are read into and answers written from, kept for their
// allocations: made anew for each they would be most of what a hit allocates.
type requests struct{ pool sync.Pool }

func (p *requests) get() *request {
	if r, ok := p.pool.Get().(*request); ok {
		return r
	}
	ended, end := context.WithCancel(context.Background())
	end()
	in := (&http.Request{Header: make(http.Header, 16)}).WithContext(ended)
	return &request{in: in, answered: answer{header: make(http.Header, 32)}}
}

func (p *requests) put(r *request) { p.pool.Put(r) }

// request is a request and its answer.
type request struct {
	head     head
	in       *http.Request
	url      url.URL
	values   [maxFields]string // of in.Header
	answered answer
}

// answer has the handler answer the request, and reports whether it did, and whether nothing
// may come behind what was written.
func (r *request) answer(c *conn) (answered, broken bool) {
	r.head.into(r.in, &r.url, c.remote, r.values[:])
	a := &r.answered
	clear(a.header)
	a.conn, a.status, a.head, a.err = c.Conn, 0, a.head[:0], nil
	if !c.listener.handler.AnswerAtOnce(a, r.in) {
		return false, a.status != 0
	}
	_, _ = a.flush(nil) // what went wrong is in a.err
	return true, a.err != nil || a.status == 0
}

// answer is an [http.ResponseWriter] for answers that are written with one call of Write or
// none, and whose fields say all there is to say, their length and type too: but for the date
// nothing is added that net/http would add, nor taken out.
type answer struct {
	conn   net.Conn
	header http.Header
	status int
	head   []byte // written when the body is, or when there is none
	names  []string
	err    error
}

func (a *answer) Header() http.Header { return a.header }

// WriteHeader makes the head. Like net/http it adds the date, and orders fields by name.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 || status < 200 {
		return
	}
	a.status = status
	b := appendStatus(a.head[:0], status)
	a.names = sorted(a.names, a.header)
	for _, name := range a.names {
		b = appendField(b, name, a.header[name])
	}
	if a.header["Date"] == nil {
		b = append(b, "Date: "...)
		b = time.Now().UTC().AppendFormat(b, http.TimeFormat)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	a.head = b
}

// WriteHead makes the head of lines that are written as they are, the date among them.
func (a *answer) WriteHead(status int, fields []byte) {
	if a.status == 0 {
		a.status = status
		a.head = append(append(appendStatus(a.head[:0], status), fields...), "\r\n"...)
	}
}

func appendStatus(b []byte, status int) []byte {
	b = strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(status), 10)
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	return append(append(append(b, ' '), text...), "\r\n"...)
}

// appendValue appends what can stand in one line.
func appendValue(b []byte, value string) []byte {
	if strings.IndexByte(value, '\n') < 0 && strings.IndexByte(value, '\r') < 0 {
		return append(b, strings.Trim(value, " \t")...)
	}
	return append(b, strings.TrimSpace(oneLine.Replace(value))...)
}

var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	return a.flush(p)
}

// small is the size up to which a body is copied behind the head: one call of the system for
// both, without a list of two.
const small = 16 << 10

// flush writes the head, if it has not been written, and p.
func (a *answer) flush(p []byte) (int, error) {
	switch {
	case a.err != nil:
		return 0, a.err
	case len(a.head) == 0 && len(p) == 0:
		return 0, nil
	case len(p) <= small:
		a.head = append(a.head, p...)
		_, a.err = a.conn.Write(a.head)
	default:
		a.err = writeAll(a.conn, net.Buffers{a.head, p})
	}
	a.head = a.head[:0]
	if a.err != nil {
		return 0, a.err
	}
	return len(p), nil
}
