package testservers

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// FreeAddress returns a loopback address that no process uses and no other test of this process gets. The port is below
// the ephemeral ports, so that no outgoing connection can use it.
func FreeAddress(t *testing.T) string {
	t.Helper()
	const lowest, highest = 15_000, 32_000
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+(os.Getpid()*100+int(ports.Add(1)))%(highest-lowest))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// ports counts the ports that FreeAddress has tried.
var ports atomic.Int32
