package inbound

import (
	"errors"
	"net"
	"syscall"
)

// notSentLowWater is TCP_NOTSENT_LOWAT of linux/tcp.h, which package syscall lacks.
const notSentLowWater = 25

// limitUnsent sets maxUnsent for a connection.
func limitUnsent(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, notSentLowWater, maxUnsent)
	})
	return errors.Join(err, failed)
}
