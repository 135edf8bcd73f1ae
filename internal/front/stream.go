package front

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// unknown is a length that nobody has told.
const unknown = -1

// most is how much is kept of a body whose length nobody has told, in case that it is all, and of
// one that tells its type: as much as net/http keeps.
const most = 2 << 10

// stream is an [http.ResponseWriter] for answers to GET of all kinds. What it sends net/http
// would send, byte for byte, but for the chunks into which it cuts a body, and for lengths and
// codings told by mistake.
type stream struct {
	conn   net.Conn
	header http.Header
	status int // 0 until the answer has one
	head   []byte
	names  []string // of the header, in order
	kept   []byte   // of a body whose length or type nobody has told
	// begun is set when the head has been written; until then it lacks what the body tells.
	begun bool
	// length is the body's, as it was told; written what came of it so far.
	length, written int64
	sniffs          bool // the body tells the type
	chunked         bool
	closes          bool     // the connection ends behind the answer
	trails          bool     // the head told of trailers
	trailers        []string // declared
	left            func()   // called when nothing can be written to the client any more
	err             error
}

// EnableFullDuplex is for [http.ResponseController]: a GET has no body that an answer could
// overtake.
func (s *stream) EnableFullDuplex() error { return nil }

// Header is that of the answer; of one that has ended it is nobody's.
func (s *stream) Header() http.Header {
	if s.header == nil {
		s.header = http.Header{}
	}
	return s.header
}

// WriteHeader makes the head of the answer; one that is not the last (1xx) is sent at once.
func (s *stream) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("front: a status of %d", status))
	case s.status != 0 || s.err != nil:
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		s.head = append(s.lines(appendStatus(s.head[:0], status), withoutBody), "\r\n"...)
		s.send("", nil, "")
		return
	}
	s.status = status
	without := map[string]bool(nil)
	switch {
	case status == http.StatusNotModified:
		without = unmodified
	case !s.allowsBody():
		without = withoutBody
	default:
		s.measure()
		_, typed := s.header["Content-Type"]
		s.sniffs = !typed && s.header.Get("Content-Encoding") == ""
	}
	for _, list := range s.header["Trailer"] {
		s.trails = true
		for name := range strings.SplitSeq(list, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "" && !noTrailer[name] && !strings.HasPrefix(name, "If-") {
				s.trailers = append(s.trailers, name)
			}
		}
	}
	s.closes = s.header.Get("Connection") == "close"
	s.head = s.lines(appendStatus(s.head[:0], status), without)
	if s.header["Date"] == nil {
		s.head = append(s.head, "Date: "...)
		s.head = time.Now().UTC().AppendFormat(s.head, http.TimeFormat)
		s.head = append(s.head, "\r\n"...)
	}
}

// What does not stand in the head of some answers: 304, and those that have no body.
var (
	unmodified  = map[string]bool{"Content-Type": true, "Content-Length": true}
	withoutBody = map[string]bool{"Content-Length": true}
)

// noTrailer is what nobody may take from behind a body, beside all that begins with If-: fields
// that say how a message is framed, routed, allowed or kept (RFC 9110 section 6.5.1).
var noTrailer = map[string]bool{
	"Authorization": true, "Cache-Control": true, "Connection": true, "Content-Encoding": true, "Content-Length": true,
	"Content-Range": true, "Content-Type": true, "Expect": true, "Host": true, "Keep-Alive": true, "Max-Forwards": true,
	"Pragma": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Range": true,
	"Realm": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Www-Authenticate": true,
}

// allowsBody reports whether the answer may have a body (RFC 9110 section 6.4.1).
func (s *stream) allowsBody() bool {
	return s.status >= 200 && s.status != http.StatusNoContent && s.status != http.StatusNotModified
}

// measure takes the body's length, where one is told that can be one.
func (s *stream) measure() {
	if text := s.header.Get("Content-Length"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
			s.length = n
			return
		}
	}
	delete(s.header, "Content-Length")
}

// lines appends the fields, in the order of their names.
func (s *stream) lines(b []byte, without map[string]bool) []byte {
	s.names = sorted(s.names, s.header)
	for _, name := range s.names {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			s.trails = true
			continue
		}
		if without[name] || name == "Transfer-Encoding" || !all(name, token) {
			continue
		}
		b = appendField(b, name, s.header[name])
	}
	return b
}

// sorted are the names of a header in order. names are those of another, mostly the same.
func sorted(names []string, h http.Header) []string {
	missing := func(name string) bool { return h[name] == nil }
	if len(names) == len(h) && !slices.ContainsFunc(names, missing) {
		return names
	}
	names = slices.AppendSeq(names[:0], maps.Keys(h))
	slices.Sort(names)
	return names
}

func appendField(b []byte, name string, values []string) []byte {
	for _, value := range values {
		b = append(append(b, name...), ": "...)
		b = append(appendValue(b, value), "\r\n"...)
	}
	return b
}

// begin ends the head; first is what there is of the body, whole whether that is all.
//
// Whoever can run does so first, here, before the next request of the connection is read, and
// before one is sent to the API: those that come at one time then take each step together, and
// who gets many of them is woken once. What passes through takes 0.8 of the processor's time by
// it on 64 connections. Where nobody can run the runtime wakes a thread that looks for work:
// what waits for the API does not feel that, what is answered at once would by a quarter.
func (s *stream) begin(first []byte, whole bool) {
	runtime.Gosched()
	s.begun = true
	if s.allowsBody() {
		measured := s.length != unknown
		if whole && !measured && !s.trails {
			s.length, measured = int64(len(first)), true
			s.head = append(strconv.AppendInt(append(s.head, "Content-Length: "...), s.length, 10), "\r\n"...)
		}
		if s.sniffs && len(first) > 0 {
			s.head = append(append(append(s.head, "Content-Type: "...), http.DetectContentType(first)...), "\r\n"...)
		}
		if s.chunked = !measured; s.chunked {
			s.head = append(s.head, "Transfer-Encoding: chunked\r\n"...)
		}
	}
	s.head = append(s.head, "\r\n"...)
}

func (s *stream) Write(p []byte) (int, error) {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	switch {
	case s.err != nil:
		return 0, s.err
	case len(p) == 0:
		return 0, nil
	case !s.allowsBody():
		return 0, http.ErrBodyNotAllowed
	}
	if s.written += int64(len(p)); s.length != unknown && s.written > s.length {
		return 0, http.ErrContentLength // and the connection ends: who wrote too much is not to be trusted
	}
	if !s.begun && (s.length == unknown || s.sniffs) {
		s.kept = append(s.kept, p...)
		if len(s.kept) <= most {
			return len(p), nil
		}
		p, s.kept = s.kept, nil
	}
	if !s.begun {
		s.begin(p, false)
	}
	s.pass(p)
	if s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}

// open sends the head, if it has not been sent, and what was kept with it.
func (s *stream) open(whole bool) {
	if s.begun || s.err != nil {
		return
	}
	s.begin(s.kept, whole)
	if len(s.kept) == 0 {
		s.send("", nil, "")
		return
	}
	s.pass(s.kept)
	s.kept = nil
}

// pass sends a part of the body.
func (s *stream) pass(p []byte) {
	if !s.chunked {
		s.send("", p, "")
		return
	}
	s.send(strconv.FormatInt(int64(len(p)), 16)+"\r\n", p, "\r\n")
}

// FlushError sends what was kept.
func (s *stream) FlushError() error {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	s.open(false)
	return s.err
}

// finish ends the answer, and reports whether it is whole.
func (s *stream) finish() (whole bool) {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	s.open(true)
	if s.chunked {
		s.send("0\r\n", s.trailer(), "\r\n")
	}
	return s.err == nil && (!s.allowsBody() || s.length == unknown || s.length == s.written)
}

// trailer is the fields behind the body: those that were declared, and those that say of
// themselves that they are such.
func (s *stream) trailer() []byte {
	fields := http.Header{}
	for name, values := range s.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			fields[name] = values
		}
	}
	for _, name := range s.trailers {
		fields[name] = append(fields[name], s.header[name]...)
	}
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if all(name, token) {
			b = appendField(b, name, fields[name])
		}
	}
	return b
}

// send sends the head, where it has not been sent, and what stands behind it.
func (s *stream) send(before string, p []byte, behind string) {
	if s.err != nil {
		return
	}
	s.head = append(s.head, before...)
	if len(p) <= small {
		s.head = append(append(s.head, p...), behind...)
		_, s.err = s.conn.Write(s.head)
	} else {
		s.err = writeAll(s.conn, net.Buffers{s.head, p, []byte(behind)})
	}
	if s.err != nil {
		s.left()
	}
	s.head = s.head[:0]
}

// writeAll writes a list, in one call of the system where the connection can.
func writeAll(c net.Conn, list net.Buffers) (err error) {
	if all, ok := c.(interface {
		WriteBuffers(*net.Buffers) (int64, error)
	}); ok {
		_, err = all.WriteBuffers(&list)
		return err
	}
	_, err = list.WriteTo(c)
	return err
}

// end takes the writer away from who may still have it, and returns what was lent to it.
func (s *stream) end() (head []byte) {
	head, s.head, s.header = s.head, nil, nil
	s.err = http.ErrHandlerTimeout
	return head[:0]
}
