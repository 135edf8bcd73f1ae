package main

import (
	"strings"
	"testing"
)

func TestForeignConnectionsReportsOtherAddresses(t *testing.T) {
	const gateway = "127.0.0.1:8443"
	const allowed = `7 connect(3, {sa_family=AF_INET, sin_port=htons(8443), sin_addr=inet_addr("127.0.0.1")}, 16) = -1 EINPROGRESS (Operation now in progress)` + "\n"
	for name, c := range map[string]struct {
		trace string
		want  []string
	}{
		"only the gateway":      {allowed + `7 connect(4, {sa_family=AF_UNIX, sun_path="/var/run/nscd/socket"}, 110) = -1 ENOENT` + "\n", nil},
		"no connection":         {"7 +++ exited with 0 +++\n", []string{"no connection to the gateway"}},
		"another port":          {allowed + strings.Replace(allowed, "8443", "9000", 1), []string{"htons(9000)"}},
		"another address":       {allowed + strings.Replace(allowed, "127.0.0.1", "127.0.0.2", 1), []string{"127.0.0.2"}},
		"IPv6":                  {allowed + `8 connect(3, {sa_family=AF_INET6, sin6_port=htons(443), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "::1", &sin6_addr), sin6_scope_id=0}, 28) = 0`, []string{`"::1"`}},
		"a DNS query":           {allowed + `8 sendto(5, "\1\0", 2, MSG_NOSIGNAL, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}, 16) = 2`, []string{"htons(53)"}},
		"an unknown format":     {allowed + `8 connect(3, {sa_family=AF_INET, 0x7f}, 16) = 0`, []string{"0x7f"}},
		"two foreign addresses": {strings.Replace(allowed, "8443", "1", 1) + strings.Replace(allowed, "8443", "2", 1), []string{"htons(1)", "htons(2)", "no connection to the gateway"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := foreignConnections(c.trace, gateway)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %v, want %q", err, w)
				}
			}
		})
	}
}
