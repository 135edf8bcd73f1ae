package main

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// inet matches the address of a connection in the output of strace, for IPv4 and IPv6.
var inet = regexp.MustCompile(`sin6?_port=htons\((\d+)\).*?(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")`)

// foreignConnections returns an error for each connection to another address than the
// gateway. A trace without a connection to the gateway is also an error.
func foreignConnections(trace, gateway string) error {
	var problems []error
	reached := false
	for line := range strings.Lines(trace) {
		if !strings.Contains(line, "AF_INET") {
			continue
		}
		to := ""
		if m := inet.FindStringSubmatch(line); m != nil {
			to = net.JoinHostPort(m[2]+m[3], m[1])
		}
		if to != gateway {
			problems = append(problems, fmt.Errorf("connection to a foreign address: %s", strings.TrimSpace(line)))
		}
		reached = reached || to == gateway
	}
	if !reached {
		problems = append(problems, errors.New("no connection to the gateway was recorded"))
	}
	return errors.Join(problems...)
}
