package credential

import (
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

const customKey = "9Hq4xWzT7rKp2mVs8bNd"

// wrapping is a registry with pass-through, and the credentials that are for its gateway.
type wrapping struct {
	registry *Registry
	own      map[string]string // by description
}

func newWrapping(t testing.TB) wrapping {
	w, token := lasting(t)
	key, _ := NewKey()
	unknown, _ := NewKey()
	config := w.registry(true, builds).config
	config.Clients = append(config.Clients, keyed("generated", key.Reveal(), "ci"), keyed("custom", customKey, "ci"))
	return wrapping{NewRegistry(config), map[string]string{
		"client key": key.Reveal(), "unknown key": unknown.Reveal(), "custom key": customKey,
		"token": token, "expired token": w.token(map[string]any{"exp": 1}),
	}}
}

// forwards reports whether the registry would send an Authorization value of a client upstream.
func (w wrapping) forwards(value string) bool {
	c, err := w.registry.Identify(requestWith(value))
	return err == nil && c.Client == ""
}

func TestWrappedCredentialsOfTheGatewayAreNeverForwarded(t *testing.T) {
	w := newWrapping(t)
	hexed := func(s string) string { return hex.EncodeToString([]byte(s)) }
	base32ed := func(s string) string { return strings.TrimRight(base32.StdEncoding.EncodeToString([]byte(s)), "=") }
	five := func(s string) string { return b64url(b64url(b64url(b64url(b64url(s))))) }
	for kind, own := range w.own {
		for name, value := range map[string]string{
			"in a list":                          "Bearer x, " + own,
			"before a list":                      "Bearer " + own + ", y",
			"with a trailing dot":                "Bearer " + own + ".",
			"with a leading dot":                 "Bearer ." + own,
			"after the prefix of a token":        "Bearer ghp_" + own,
			"after another prefix":               "Bearer ghs_1_" + own,
			"in upper case":                      "Bearer " + strings.ToUpper(own) + ".",
			"twice the scheme":                   "Bearer Bearer " + own,
			"another scheme":                     "Digest response=" + own,
			"without a scheme":                   own + ".",
			"percent-encoded":                    "Bearer " + url.QueryEscape("a "+own),
			"password":                           basic("octocat:" + own),
			"password of a name with dots":       basic("a.b:" + own),
			"name with dots":                     basic("a.b." + own + ":x"),
			"name":                               basic(own + ":"),
			"name with x-oauth-basic":            basic(own + ":x-oauth-basic"),
			"pair without a colon":               basic(own),
			"Basic without padding":              "Basic " + strings.TrimRight(b64("x:"+own), "="),
			"Basic for URLs":                     "Basic " + b64url("??>:"+own),
			"Basic that is not encoded":          "Basic x:" + own,
			"base64":                             "Bearer " + b64url(own),
			"base64 in a pair":                   basic("x:" + b64url(own)),
			"base64 of a pair":                   "Bearer " + b64url("x:"+own),
			"base64 of a header":                 "Bearer " + b64url("Authorization: Bearer "+own),
			"base64 twice":                       "Bearer " + b64url(b64(own)),
			"base64 five times":                  "Bearer " + five(own),
			"base64 after the prefix of a token": "Bearer github_pat_" + b64url(own),
			"base64 after one character":         "Bearer x" + b64url(own),
			"base64 in a dotted token":           "Bearer ghs_1." + b64url(own) + ".x",
			"hexadecimal":                        "Bearer " + hexed(own),
			"hexadecimal in base64":              "Bearer " + b64url(hexed(own)),
			"base32":                             "Bearer " + base32ed(own),
		} {
			if kind == "custom key" && (name == "after the prefix of a token" || name == "after another prefix" || name == "in upper case") {
				continue // part of a longer word, or another word: not a key
			}
			failIf(t, w.forwards(value), "%s, %s: forwarded", kind, name)
		}
	}
	for name, value := range map[string]string{
		"client key without its mark":               "Bearer " + strings.TrimPrefix(w.own["client key"], keyPrefix),
		"client key in lower case without its mark": "Bearer " + strings.ToLower(strings.TrimPrefix(w.own["client key"], keyPrefix)),
		"client key with another mark":              "Bearer ghp_" + strings.TrimPrefix(w.own["client key"], keyPrefix),
		"unknown key in another case":               "Bearer Weir_" + strings.TrimPrefix(w.own["unknown key"], keyPrefix),
		"beginning of a key":                        "Bearer WEIR_ABC",
		"token in the JSON serialization":           "Bearer " + b64url(inJSON(w.own["token"])),
		"too many encodings":                        "Bearer " + strings.Repeat("3", 4000),
		"too long":                                  "Bearer " + strings.Repeat("-", maxCredential),
	} {
		failIf(t, w.forwards(value), "%s: forwarded", name)
	}
}

func TestOnlyFormsOfUpstreamCredentialsAreForwarded(t *testing.T) {
	w := newWrapping(t)
	app := unsigned(map[string]any{"iss": "12345", "aud": "https://issuer.example"}) + "c2lnbmF0dXJl"
	expectForwarded(t, w.registry,
		"Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a", "token ghp_x", "bearer 0123456789abcdef0123456789abcdef01234567", "Bearer my-token",
		"Bearer github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijk",
		"Bearer "+app, "Bearer ghs_12345_"+app,
		basic("Iv1.0123456789abcdef:0123456789abcdef0123456789abcdef01234567"), basic("octo@example.com:ghp_x"), basic("ghp_x:"),
		basic("ghp_x:x-oauth-basic"), basic(":ghp_x"), "BASIC"+strings.TrimPrefix(basic("x:y"), "Basic"),
	)
	expectRefused(t, w.registry, []error{ErrForm},
		"x", "Bearer", "Bearer  x", "Bearer\tx", "Bearer x y", "Bearer x, y", `Bearer "x"`, "Bearer x=", "Bearer x.", "Bearer x.y", "Bearer x.y.z", "Bearer ghp_x,y",
		"Bearer: x", "Digest x", "Negotiate x", "Basic", "Basic x", "Basic "+b64url("ab:c"), "Basic "+b64("a"), basic("a b:c"), basic("a:b:c"), basic("a:b c"), basic(":"),
		basic("a:\x00"), "Bearer x\x00", "Bearer é",
	)
}

// FuzzWrappedCredential wraps own credentials of the gateway. Each byte of steps selects a wrapping.
func FuzzWrappedCredential(f *testing.F) {
	w := newWrapping(f)
	wrappings := []func(string, string) string{
		func(s, _ string) string { return b64(s) },
		func(s, _ string) string { return b64url(s) },
		func(s, _ string) string { return strings.TrimRight(base32.StdEncoding.EncodeToString([]byte(s)), "=") },
		func(s, _ string) string { return hex.EncodeToString([]byte(s)) },
		func(s, text string) string { return text + ":" + s },
		func(s, text string) string { return s + ":" + text },
		func(s, text string) string { return text + "." + s },
		func(s, text string) string { return s + "." + text },
	}
	f.Add("Bearer ", "x", []byte{0, 1})
	f.Add("Basic ", "octocat", []byte{4, 0})
	f.Add("token ", "ghs_1", []byte{1, 6, 3, 2})
	f.Fuzz(func(t *testing.T, scheme, text string, steps []byte) {
		for kind, own := range w.own {
			value, encoded := own, false
			for _, step := range steps {
				i := int(step) % len(wrappings)
				if encoded = encoded || i < 4; kind == "custom key" && i > 5 && !encoded {
					continue // part of another word
				}
				if value = wrappings[i](value, text); len(value) > maxCredential {
					break
				}
			}
			failIf(t, w.forwards(scheme+value), "%s: forwarded as %q", kind, scheme+value)
		}
	})
}

// TestHoldsOwnFindsCredentialsOfTheGateway wraps the credentials of the gateway like fields, cookies and queries do. A
// custom key inside a longer word is found only if it is the key of the request itself.
func TestHoldsOwnFindsCredentialsOfTheGateway(t *testing.T) {
	w := newWrapping(t)
	for kind, own := range w.own {
		for name, text := range map[string]string{
			"alone": own, "bearer": "Bearer " + own, "cookie": "theme=dark; session=" + own + "; lang=en", "list": "a, " + own + ",b",
			"basic": basic("octocat:" + own), "base64": b64(own), "quoted": `"` + own + `"`, "percent-encoded": percent(own), "percent-encoded twice": percent(percent(own)),
			"userinfo": "https://x:" + own + "@api.test/", "hexadecimal": hex.EncodeToString([]byte(own)),
		} {
			failIf(t, !w.registry.HoldsOwn(requestWith("Bearer "+own), text), "%s, %s: not found with the key of the request", kind, name)
			failIf(t, !w.registry.HoldsOwn(requestWith(""), text), "%s, %s: not found", kind, name)
		}
		failIf(t, kind != "expired token" && !w.registry.HoldsOwn(requestWith("Bearer "+own), "x"+own+"x"), "%s in a word: not found", kind)
	}
	for _, text := range []string{
		"", "octokit-core.js/6.1.2 Node.js/22", "application/vnd.github+json", "0123456789abcdef0123456789abcdef01234567", "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
		"Y3Vyc29yOnYyOpHOAAEwLjUzNDg3NjQ4NzY1NDM", "100%", strings.Repeat("%41", 2000), "2026-01-01T00:00:00Z", "https://gateway.example/weir",
		"weir_deployment_tools_x", "weir_requests_total in:file language:go", "repo:acme/weir_tools weir_requests_total", "weir_exporter/1.0 (linux; amd64)", percent("weir_requests_total"),
	} {
		failIf(t, w.registry.HoldsOwn(requestWith("Bearer "+customKey), text) || w.registry.HoldsOwn(requestWith("Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a"), text), "%.40q is taken for a credential of the gateway", text)
	}
}

// percent encodes all characters.
func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}
