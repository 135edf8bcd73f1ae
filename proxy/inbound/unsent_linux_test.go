package inbound

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// The kernel keeps few unsent bytes for a client that does not read, and may grow the buffer for bytes in flight.
func TestUnsentBytesAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	failIf(t, err != nil, "%v", err)
	defer func() { _ = l.Close() }()
	var c Connections
	client, err := net.Dial("tcp", l.Addr().String())
	failIf(t, err != nil, "%v", err)
	defer func() { _ = client.Close() }()
	_ = client.(*net.TCPConn).SetReadBuffer(64 << 10)
	served, err := c.Listener(l, time.Minute, slog.New(slog.DiscardHandler)).Accept()
	failIf(t, err != nil, "%v", err)
	defer func() { _ = served.Close() }()
	tcp := served.(*conn).Conn.(*net.TCPConn)

	_ = tcp.SetWriteDeadline(time.Now().Add(time.Second / 2))
	kept, err := tcp.Write(make([]byte, 16<<20))
	failIf(t, !errors.Is(err, os.ErrDeadlineExceeded) || kept > 4*maxUnsent, "the kernel took %d bytes: %v", kept, err)

	raw, err := tcp.SyscallConn()
	failIf(t, err != nil, "%v", err)
	_ = raw.Control(func(fd uintptr) {
		const bufferLock = 72 // SO_BUF_LOCK of asm-generic/socket.h
		locked, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, bufferLock)
		failIf(t, err == nil && locked != 0, "the write buffer has a fixed size")
	})
}
