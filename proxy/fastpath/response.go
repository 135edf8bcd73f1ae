package fastpath

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// buffers are reused between hits; allocating them for each would dominate the cost of a hit.
type buffers struct {
	input  bytes.Reader
	reader *bufio.Reader
	writer *bufio.Writer
}

// outputSize is large enough for most hits, which are then written with one system call.
const outputSize = 16 << 10

// serve calls the handler with a request that consists of a head. It reports whether the
// handler served the request, and whether the connection is still usable.
func (l *listener) serve(c net.Conn, head []byte) (served, intact bool) {
	b, ok := l.buffers.Get().(*buffers)
	if !ok {
		b = &buffers{reader: bufio.NewReader(nil), writer: bufio.NewWriterSize(nil, outputSize)}
	}
	defer l.buffers.Put(b)
	b.input.Reset(head)
	b.reader.Reset(&b.input)
	b.writer.Reset(c)
	r, err := http.ReadRequest(b.reader)
	if err != nil {
		return false, true // net/http writes the error
	}
	r = r.WithContext(l.cancelled)
	r.RemoteAddr = c.RemoteAddr().String()
	w := &response{out: b.writer, header: http.Header{}}
	if !l.handler.ServeHit(w, r) {
		return false, w.status == 0
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return true, b.writer.Flush() == nil && w.isComplete()
}

// response is the [http.ResponseWriter] of a hit. It writes the same bytes as net/http for a
// response with Content-Type and Content-Length.
type response struct {
	out    *bufio.Writer
	header http.Header
	status int // 0 before WriteHeader
	length int // of the body so far
}

func (w *response) Header() http.Header { return w.header }

// WriteHeader writes the status line and the header. Errors appear in Flush.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	text := http.StatusText(status)
	if text == "" {
		text = fmt.Sprint("status code ", status)
	}
	_, _ = fmt.Fprintf(w.out, "HTTP/1.1 %03d %s\r\n", status, text)
	_ = w.header.Write(w.out)
	if w.header["Date"] == nil {
		_, _ = w.out.WriteString("Date: " + time.Now().UTC().Format(http.TimeFormat) + "\r\n")
	}
	_, _ = w.out.WriteString("\r\n")
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.length += len(p)
	return w.out.Write(p)
}

// isComplete reports whether the response has the length that its header declares. After any
// other response, the client could not find the start of the next one.
func (w *response) isComplete() bool {
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return w.length == 0
	}
	return w.header.Get("Content-Length") == strconv.Itoa(w.length)
}
