package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
)

// These errors end a request.
var (
	ErrStalled = errors.New("the upstream did not respond in time")
	ErrInterim = errors.New("the upstream sent too many interim responses")
	// ErrUnpermitted ends a request that the transport would otherwise send again without a permit.
	ErrUnpermitted = fmt.Errorf("the upstream closed the connection during the request: %w", io.ErrUnexpectedEOF)
)

// IsTimeout reports whether a request ended because the upstream did not respond in time.
func IsTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, ErrStalled) || errors.As(err, &t) && t.Timeout()
}

// IsBroken reports whether the connection broke before a response began. A retry may then succeed, unlike after a
// timeout.
func IsBroken(err error) bool {
	fault, _ := ConnectionFault(err)
	return fault != "" && !IsTimeout(err) && !errors.Is(err, ErrInterim)
}

// http2Breaks are parts of the errors of net/http, which exports no types for them, after a connection of HTTP/2 has ended.
var http2Breaks = []string{
	"http2: server sent GOAWAY", "http2: Transport received Server's graceful shutdown GOAWAY",
	"http2: client connection lost", // no response to a PING
}

// isHTTP2Break reports whether the upstream has ended the stream or the connection of a request over HTTP/2.
func isHTTP2Break(err error) bool {
	return IsStreamReset(err) ||
		slices.ContainsFunc(http2Breaks, func(part string) bool { return strings.Contains(err.Error(), part) })
}

// IsStreamReset reports whether the upstream has ended only the stream of a request, with RST_STREAM.
func IsStreamReset(err error) bool { return strings.Contains(err.Error(), "; received from peer") }

// ConnectionFault describes a failed connection without the address of the upstream, and returns the error type for
// traces. Both results are empty for other errors.
func ConnectionFault(err error) (description, errorType string) {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return "the upstream's name cannot be resolved", "name_resolution"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the upstream refuses connections", "connection_refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), isHTTP2Break(err):
		return "the upstream broke the connection", "connection_broken"
	case errors.As(err, &op) && op.Op == "dial":
		return "the upstream cannot be reached", "_OTHER"
	}
	return "", ""
}
