package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy/wire"
)

func TestAttemptResultHasTheErrorType(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "204"},
		{fmt.Errorf("wire: %w", wire.ErrStalled), "timeout"},
		{&net.OpError{Op: "read", Err: context.DeadlineExceeded}, "timeout"},
		{fmt.Errorf("wire: %w", context.Canceled), "canceled"},
		{&net.DNSError{Err: "no such host", Name: "x"}, "name_resolution"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "connection_refused"},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "connection_broken"},
		{io.ErrUnexpectedEOF, "connection_broken"},
		{errors.New("malformed HTTP response"), "_OTHER"},
	} {
		got := requestResult(&http.Response{StatusCode: http.StatusNoContent}, c.err)
		if got != c.want {
			t.Errorf("%v: got %s, want %s", c.err, got, c.want)
		}
	}
}

func TestQueueResultHasTheReason(t *testing.T) {
	for _, c := range []struct {
		permit *limits.Permit
		err    error
		want   string
	}{
		{&limits.Permit{}, nil, ""},
		{&limits.Permit{Waited: limits.Points}, nil, "points"},
		{nil, &limits.Refusal{Reason: limits.Primary}, "primary"},
		{nil, &limits.WritesError{Writes: 2, Limit: 1}, "writes"},
		{nil, context.Canceled, "canceled"},
		{nil, errors.New("no reply"), "store"},
	} {
		got := queueResult(c.permit, c.err)
		if got != c.want {
			t.Errorf("%+v, %v: got %q, want %q", c.permit, c.err, got, c.want)
		}
	}
}
