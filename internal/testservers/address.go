package testservers

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// FreeAddress is FindAddress for a test. The test ends if no address is free.
func FreeAddress(t *testing.T) string {
	t.Helper()
	address, err := FindAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// FindAddress returns a loopback address on which no process listens. It returns each address once per process. The port is
// below the ephemeral ports of Linux (from 32768), so that no outgoing connection can use it. The error says that no such
// port is free.
func FindAddress() (string, error) {
	const lowest, highest = 15_000, 32_000
	for range 1000 {
		// go test runs packages at the same time, so each process begins with another port.
		address := fmt.Sprintf("127.0.0.1:%d", lowest+(os.Getpid()*100+int(ports.Add(1)))%(highest-lowest))
		if l, err := net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("1000 ports from %d are in use", lowest)
}

// ports counts the ports that FindAddress has tried.
var ports atomic.Int32
