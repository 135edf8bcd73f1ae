package testservers

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// FreeAddress returns a loopback address on which no process listens. It returns each address once per process. The port is
// below the ephemeral ports of Linux (from 32768), so that no outgoing connection can use it.
func FreeAddress(t *testing.T) string {
	t.Helper()
	const lowest, highest = 15_000, 32_000
	for range 1000 {
		// go test runs packages at the same time, so each process begins with another port.
		address := fmt.Sprintf("127.0.0.1:%d", lowest+(os.Getpid()*100+int(ports.Add(1)))%(highest-lowest))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatalf("1000 ports from %d are in use", lowest)
	return ""
}

// ports counts the ports that FreeAddress has tried.
var ports atomic.Int32
