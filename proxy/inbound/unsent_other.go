//go:build !linux

package inbound

import "net"

// limitUnsent bounds all bytes that the kernel keeps, because other systems lack a bound for unsent bytes.
func limitUnsent(c *net.TCPConn) error { return c.SetWriteBuffer(maxUnsent) }
