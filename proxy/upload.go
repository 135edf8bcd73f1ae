package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// maxTaken is how much of a client's body is read before anything is asked for it.
const maxTaken = 1 << 20

// takeIn reads the body of a request that may be small before a permit is asked for: a
// client that brings it slowly holds neither a place among the concurrent requests nor a
// connection upstream. What is larger passes on as it comes, behind what was read of it.
// The client's patience counts from here on.
func (g *Gateway) takeIn(ex *exchange) error {
	if !ex.brings() || ex.in.ContentLength > maxTaken || ex.taken != nil {
		return nil
	}
	if len(ex.in.Header["Expect"]) > 0 {
		return nil // the upstream says whether it wants it (RFC 9110 section 10.1.1)
	}
	_, err := g.take(ex)
	return err
}

// brings reports whether a body is sent on.
func (ex *exchange) brings() bool {
	return ex.body != nil && ex.in.Method != http.MethodGet && ex.in.Method != http.MethodHead
}

// take reads the body as far as maxTaken, or as there is room for, and puts it back. It
// returns what was read if that is all.
func (g *Gateway) take(ex *exchange) (whole []byte, err error) {
	t := &takenBody{room: &g.Background.room, rest: ex.in.Body}
	ex.taken = t
	piece := make([]byte, min(copyBuffer, max(ex.in.ContentLength, 512)))
	if ex.in.ContentLength < 0 {
		piece = make([]byte, copyBuffer)
	}
	for err == nil && len(t.data) <= maxTaken && !t.full {
		var n int
		n, err = ex.in.Body.Read(piece)
		t.took(piece[:n])
	}
	ex.in.Body = t.again(err)
	ex.waitingSince = time.Now()
	switch {
	case errors.Is(err, io.EOF):
		return t.data, nil
	case err != nil:
		return nil, ex.bodyFault(&failure{status: statusClientGone, cause: err})
	}
	return nil, nil
}

// takenBody is what was read of a body, and the room that it takes until its request
// has ended.
type takenBody struct {
	data []byte
	rest io.ReadCloser
	room *room
	full bool // there is no room for more
}

func (t *takenBody) took(p []byte) {
	t.data = append(t.data, p...)
	if !t.room.take(len(p)) {
		t.full = true
		t.room.give(len(t.data) - len(p))
		t.room = nil
	}
}

// again is the body from its beginning, where reading it ended with err.
func (t *takenBody) again(err error) io.ReadCloser {
	rest := io.Reader(t.rest)
	if err != nil {
		rest = brokenReader{err}
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(t.data), rest), t.rest}
}

// end gives back the room.
func (t *takenBody) end() {
	if t != nil {
		t.room.give(len(t.data))
		t.room = nil
	}
}
