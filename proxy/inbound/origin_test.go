package inbound

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
)

// TestOriginIsThatOfTheOutermostTrustedProxy covers attack 14 of docs/internals/attacks.md: other peers and invalid values change
// nothing.
func TestOriginIsThatOfTheOutermostTrustedProxy(t *testing.T) {
	const inner, outside = "10.0.0.1:1", "192.0.2.1:1"
	proxies := trustedProxies("10.0.0.0/8", "2001:db8:1::/48")
	forwarded := func(value string) http.Header { return http.Header{"Forwarded": {value}} }
	host := func(value string) http.Header { return http.Header{"X-Forwarded-Host": {value}} }
	prefix := func(value string) http.Header { return http.Header{"X-Forwarded-Prefix": {value}} }
	port := func(value string) http.Header { return http.Header{"X-Forwarded-Port": {value}} }
	proto := func(values ...string) http.Header { return http.Header{"X-Forwarded-Proto": values} }
	all := http.Header{
		"X-Forwarded-Proto": {"HTTPS"}, "X-Forwarded-Host": {"api.example"}, "X-Forwarded-Port": {"8443"}, "X-Forwarded-Prefix": {"/weir/"},
		"Forwarded": {"for=192.0.2.9;host=std.example;proto=https"},
	}
	chain := func(name, value string) http.Header {
		return http.Header{"X-Forwarded-For": {"192.0.2.9, 10.0.0.2"}, name: {value}}
	}
	tunnelled := &conn{}
	tunnelled.tunnel.Store(&Tunnel{Host: "weir.internal"})
	const unchanged = "http://weir.internal"
	for name, c := range map[string]struct {
		remote string
		header http.Header
		want   string
	}{
		"no fields":                    {inner, nil, unchanged},
		"another peer":                 {outside, all, unchanged},
		"Unix socket":                  {"@", all, unchanged},
		"both kinds":                   {inner, all, "https://std.example/weir"},
		"Forwarded":                    {inner, forwarded("for=1.2.3.4;Host=api.example;PROTO=HTTPS"), "https://api.example"},
		"Forwarded, quoted":            {inner, forwarded(`host="api.example:8443"; proto="https"`), "https://api.example:8443"},
		"Forwarded, IPv6":              {inner, forwarded(`host="[2001:db8::1]:81"`), "http://[2001:db8::1]:81"},
		"Forwarded, forged first":      {inner, forwarded("for=192.0.2.1;host=evil.test, for=192.0.2.9;host=api.example"), "http://api.example"},
		"Forwarded, two proxies":       {inner, forwarded(`for=192.0.2.9;host=api.example, for="[2001:db8:1::1]:99";host=inner.example`), "http://api.example"},
		"Forwarded, only proto":        {inner, http.Header{"Forwarded": {"proto=https"}, "X-Forwarded-Host": {"api.example"}}, "https://api.example"},
		"Forwarded, open quote":        {inner, forwarded(`host="api.example`), unchanged},
		"Forwarded, text after quote":  {inner, forwarded(`host="api.example"x`), unchanged},
		"Forwarded, repeated":          {inner, forwarded("host=a.example;host=b.example"), unchanged},
		"Forwarded, trailing comma":    {inner, forwarded("host=a.example,"), unchanged},
		"Forwarded, quoted injection":  {inner, forwarded(`host="a.example\">; rel=\"next"`), unchanged},
		"Forwarded, user name":         {inner, forwarded(`host="user@a.example"`), unchanged},
		"Forwarded, scheme javascript": {inner, forwarded("proto=javascript"), unchanged},
		"HTTPS":                        {inner, proto("HTTPS"), "https://weir.internal"},
		"HTTP":                         {inner, proto("http"), unchanged},
		"HTTPS, forged":                {outside, proto("https"), unchanged},
		"scheme by the last proxy":     {inner, proto("https", "http"), unchanged},
		"scheme by the first of two":   {inner, chain("X-Forwarded-Proto", "https, http"), "https://weir.internal"},
		"host":                         {inner, host("api.example"), "http://api.example"},
		"host with port":               {inner, host("api.example:8080"), "http://api.example:8080"},
		"host, forged first":           {inner, host("evil.test, api.example"), "http://api.example"},
		"host by the first of two":     {inner, chain("X-Forwarded-Host", "api.example, inner.example"), "http://api.example"},
		"host by one of two":           {inner, chain("X-Forwarded-Host", "api.example"), "http://api.example"},
		"host with path":               {inner, host("api.example/x"), unchanged},
		"host with angle bracket":      {inner, host("api.example>"), unchanged},
		"host with quotation mark":     {inner, host(`api.example"`), unchanged},
		"host with space":              {inner, host("api.example evil.test"), unchanged},
		"host with line break":         {inner, host("api.example\r\nX-Evil: 1"), unchanged},
		"host with empty label":        {inner, host("api..example"), unchanged},
		"host with bad port":           {inner, host("api.example:99999"), unchanged},
		"host with zone":               {inner, host("[fe80::1%eth0]"), unchanged},
		"empty host":                   {inner, host(""), unchanged},
		"port":                         {inner, port("8080"), "http://weir.internal:8080"},
		"default port":                 {inner, port("443"), unchanged},
		"port with text":               {inner, port("80@evil.test"), unchanged},
		"prefix":                       {inner, prefix("/a/weir"), "http://weir.internal/a/weir"},
		"prefix with slash at its end": {inner, prefix("/weir/"), "http://weir.internal/weir"},
		"root as prefix":               {inner, prefix("/"), unchanged},
		"prefix with dots":             {inner, prefix("/a/../b"), unchanged},
		"prefix with another host":     {inner, prefix("//evil.test"), unchanged},
		"prefix without slash":         {inner, prefix("weir"), unchanged},
		"prefix with quotation mark":   {inner, prefix(`/weir">`), unchanged},
		"prefix with query":            {inner, prefix("/weir?x"), unchanged},
		"prefix with escapes":          {inner, prefix("/%2e%2e"), unchanged},
	} {
		r := &http.Request{RemoteAddr: c.remote, Host: "weir.internal", Header: c.header}
		got := proxies.Origin(r).String()
		failIf(t, got != c.want, "%s: got %s, want %s", name, got, c.want)
		r.TLS = &tls.ConnectionState{}
		secure := proxies.Origin(r).Scheme
		failIf(t, secure != "https" && name != "HTTP" && name != "scheme by the last proxy", "%s over TLS: got %s", name, secure)
		got = proxies.Origin(r.WithContext(context.WithValue(t.Context(), connKey{}, tunnelled))).String()
		failIf(t, got != "https://weir.internal", "%s in a tunnel: got %s", name, got)
	}
}
