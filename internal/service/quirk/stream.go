package quirk

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
)

// net/http resets streams only with INTERNAL_ERROR. A connection of [State.Listener] tells each HTTP/2 request its stream
// in a field, and changes the code of the streams that the service refuses.

// streamField is the request field with the connection and the stream of a request.
const streamField = "Quirk-Stream"

// Frames and codes of HTTP/2 (RFC 9113 sections 4.1, 6 and 7).
const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader   = 9
	frameHeaders  = 1
	frameReset    = 3
	flagHeaders   = 4 // END_HEADERS
	flagPadded    = 8
	internalError = 2
	refusedStream = 7
)

var connections atomic.Int64

// Listener returns a listener whose connections can refuse streams. The listener l must accept connections with TLS.
func (s *State) Listener(l net.Listener) net.Listener { return &listener{l, s} }

type listener struct {
	net.Listener
	state *State
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	tlsConn, ok := c.(*tls.Conn)
	if err != nil || !ok {
		return c, err
	}
	return &conn{Conn: tlsConn, state: l.state, id: connections.Add(1)}, nil
}

// conn is a TLS connection. Since Go 1.27, net/http serves HTTP/2 on it because of its methods
// HandshakeContext and ConnectionState.
type conn struct {
	*tls.Conn
	state   *State
	id      int64
	http2   bool
	in, out frames
	ready   []byte // for Read
}

// HandshakeContext shadows the method of tls.Conn.
func (c *conn) HandshakeContext(ctx context.Context) error {
	err := c.Conn.HandshakeContext(ctx)
	c.http2 = c.Conn.ConnectionState().NegotiatedProtocol == "h2"
	c.in.skip = len(preface)
	return err
}

// Read adds the stream to the fields of each request.
func (c *conn) Read(p []byte) (int, error) {
	if !c.http2 {
		return c.Conn.Read(p)
	}
	for len(c.ready) == 0 {
		n, err := c.Conn.Read(p)
		c.ready = append(c.ready, c.in.edit(p[:n], c.nameStream)...)
		if err != nil && len(c.ready) == 0 {
			return 0, err
		}
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// Write changes the codes of refused streams. net/http writes frames one after another.
func (c *conn) Write(p []byte) (int, error) {
	if !c.http2 {
		return c.Conn.Write(p)
	}
	if out := c.out.edit(p, c.changeCode); len(out) > 0 {
		if _, err := c.Conn.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *conn) name(frame []byte) string {
	return fmt.Sprintf("%d-%d", c.id, binary.BigEndian.Uint32(frame[5:]))
}

// nameStream appends a field to a HEADERS frame. A literal field without indexing leaves the state of HPACK unchanged
// (RFC 7541 section 6.2.2).
func (c *conn) nameStream(frame []byte) []byte {
	if frame[3] != frameHeaders || frame[4]&(flagHeaders|flagPadded) != flagHeaders {
		return frame
	}
	name, value := strings.ToLower(streamField), c.name(frame)
	frame = slices.Concat(frame, []byte{0, byte(len(name))}, []byte(name), []byte{byte(len(value))}, []byte(value))
	n := len(frame) - frameHeader
	frame[0], frame[1], frame[2] = byte(n>>16), byte(n>>8), byte(n)
	return frame
}

// changeCode changes a RST_STREAM frame of a stream that the service refused.
func (c *conn) changeCode(frame []byte) []byte {
	if frame[3] == frameReset && frame[len(frame)-1] == internalError {
		if _, refused := c.state.refused.LoadAndDelete(c.name(frame)); refused {
			frame[len(frame)-1] = refusedStream
		}
	}
	return frame
}

// refuse makes the connection of a stream reset it with REFUSED_STREAM.
func (s *State) refuse(stream string) {
	if stream != "" {
		s.refused.Store(stream, true)
	}
}

// frames splits a stream of bytes into frames.
type frames struct {
	skip int // bytes before the first frame
	held []byte
}

// edit returns the complete frames in the next bytes of the stream, after change. It holds the beginning of a frame back.
func (f *frames) edit(p []byte, change func([]byte) []byte) []byte {
	out := slices.Clone(p[:min(f.skip, len(p))])
	f.held = append(f.held, p[len(out):]...)
	f.skip -= len(out)
	for len(f.held) >= frameHeader {
		end := frameHeader + int(f.held[0])<<16 + int(f.held[1])<<8 + int(f.held[2])
		if len(f.held) < end {
			break
		}
		out = append(out, change(f.held[:end:end])...)
		f.held = f.held[end:]
	}
	return out
}
