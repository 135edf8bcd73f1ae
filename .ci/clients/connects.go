package main

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// inet finds the address of a call of strace's: of IPv4, of IPv6 in either way of writing it.
var inet = regexp.MustCompile(`sin6?_port=htons\((\d+)\).*?(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")`)

// strays reports whom a process spoke to beside the gateway, by what strace says of it.
// No connection at all is wrong, too: then it was not watched.
func strays(trace, gateway string) error {
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
			problems = append(problems, fmt.Errorf("speaks to another than the gateway: %s", strings.TrimSpace(line)))
		}
		reached = reached || to == gateway
	}
	if !reached {
		problems = append(problems, errors.New("was not seen to connect to the gateway"))
	}
	return errors.Join(problems...)
}
