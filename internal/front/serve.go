package front

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// listenAfter is how long a request is answered until somebody listens whether its client
// leaves: most are answered by then, and to listen takes a goroutine, a call of the system,
// and deadlines.
const listenAfter = 20 * time.Millisecond

// serve has the server's handler answer a request, and reports whether another may follow on
// the connection.
func (c *conn) serve(r *request) (goesOn bool) {
	if !c.begin() {
		return false
	}
	ctx, cancel := context.WithCancel(c.context())
	clear(r.answered.header)
	w := &stream{conn: c.Conn, header: r.answered.header, head: r.answered.head[:0], names: r.answered.names, length: unknown, left: cancel}
	watching, broken := c.watch(cancel), true // by a panic
	defer func() {
		watching.end()
		cancel()
		r.answered.head, r.answered.names = w.end(), w.names
		goesOn = !c.end(broken) && !w.closes
	}()
	c.listener.server.Handler.ServeHTTP(w, r.head.request(ctx, c.remote))
	broken = !w.finish()
	return goesOn // as it has ended
}

// context is what the connection's requests have in common, as net/http has it. It ends with
// the connection: those of all connections would stand in line for their base.
func (c *conn) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		base := context.WithValue(c.listener.base, http.ServerContextKey, c.listener.server)
		c.ctx, c.ended = context.WithCancel(context.WithValue(base, http.LocalAddrContextKey, c.LocalAddr()))
	}
	return c.ctx
}

// request makes a request of a plain head that is the handler's for as long as it likes.
func (h *head) request(ctx context.Context, remote string) *http.Request {
	r := (&http.Request{Header: make(http.Header, len(h.fields))}).WithContext(ctx)
	h.into(r, new(url.URL), remote, make([]string, len(h.fields)))
	return r
}

// watch listens, after a while, whether a client leaves while it is answered. A connection has
// one for all its requests.
type watch struct {
	c     *conn
	left  func()
	timer *time.Timer // nil before the first
	// steps get one when it begins to listen, and one when it has ended.
	steps chan struct{}
}

func (c *conn) watch(left func()) *watch {
	w := &c.watching
	w.left = left
	if w.timer == nil {
		w.c, w.steps = c, make(chan struct{}, 2)
		w.timer = time.AfterFunc(listenAfter, w.listen)
	} else {
		w.timer.Reset(listenAfter)
	}
	return w
}

func (w *watch) listen() {
	_ = w.c.SetReadDeadline(time.Time{}) // that of an idle client
	w.steps <- struct{}{}
	_ = w.c.listen()
	w.left() // or the answer has ended, and it does not matter
	w.steps <- struct{}{}
}

// end ends listening, if it has begun.
func (w *watch) end() {
	if w.timer.Stop() {
		return
	}
	<-w.steps
	_ = w.c.SetReadDeadline(longPast)
	<-w.steps
	_ = w.c.SetReadDeadline(time.Time{}) // the next request's is set by waits
}

// longPast ends what is read now.
var longPast = time.Unix(1, 0)
