package credential

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNewKeyReturnsKeyAndHash(t *testing.T) {
	key, hash := NewKey()
	other, _ := NewKey()
	sum := sha256.Sum256([]byte(key.Reveal()))
	equal(t, "hash of the key", hash, "sha256:"+hex.EncodeToString(sum[:]))
	if !strings.HasPrefix(key.Reveal(), "weir_") || len(key.Reveal()) < len("weir_")+26 || key == other {
		t.Errorf("keys %s and %s", key.Reveal(), other.Reveal())
	}
}

// An unknown client key may be mistyped or revoked. The upstream must not receive it.
func TestUnknownClientKeyIsNeverPassedThrough(t *testing.T) {
	b := newTestRegistry(true)
	secret, _ := NewKey()
	key := secret.Reveal()
	for _, value := range []string{
		"Bearer " + key, "token " + key, "bearer  " + key, basic("x:" + key), basic(key + ":"), basic(key + ":x"), basic(key),
		key, "Bearer\t" + key, "Bearer: " + key, `Bearer "` + key + `"`, "Bearer=" + key, "Bearer Bearer " + key,
		"Bearer " + key[:9], "Bearer x, Bearer " + key, "Basic " + key, "Digest response=\"" + key + "\"",
	} {
		if c, err := b.Identify(requestWith(value)); !errors.Is(err, ErrForm) && !errors.Is(err, ErrOwn) {
			t.Errorf("%s: got %+v, %v, want ErrForm or ErrOwn", value, c, err)
		}
	}
}

// Upstream credentials may contain the key prefix by chance.
func TestCredentialContainingTheKeyPrefixIsPassedThrough(t *testing.T) {
	b := newTestRegistry(true)
	for _, value := range []string{"Bearer ghp_weir_x", "Bearer my-weir_x", "Bearer weir", basic("my_weir_app:x")} {
		equal(t, value, identify(t, b, value).Authorization.Reveal(), value)
	}
}

// registryOf returns a registry of clients without pass-through.
func registryOf(clients ...Client) *Registry {
	return newRegistry(func(c *Config) { c.PassThrough, c.Clients = false, clients })
}

func TestHashOrPartOfAKeyIdentifiesNoClient(t *testing.T) {
	long := strings.Repeat("k", 100)
	b := registryOf(keyed("long", long, "ci"), Client{Name: "without a key", Credentials: []string{"ci"}})
	sum := sha256.Sum256([]byte(long))
	if c := identify(t, b, "Bearer "+long); c.Client != "long" {
		t.Fatalf("got %+v, want the client long", c)
	}
	for name, shown := range map[string]string{
		"its hash":                         hex.EncodeToString(sum[:]),
		"its hash as in the configuration": "sha256:" + hex.EncodeToString(sum[:]),
		"its hash in binary":               string(sum[:]),
		"its first 72 bytes":               long[:72],
		"all but its last byte":            long[:99],
		"one more byte":                    long + "k",
		"one more zero byte":               long + "\x00",
		"upper case":                       strings.ToUpper(long),
		"a space inside":                   long[:50] + " " + long[50:],
		"the zero hash in hexadecimal":     strings.Repeat("0", 64),
		"name of a client":                 "long",
		"the zero hash in binary":          string(make([]byte, sha256.Size)),
	} {
		if c, err := b.Identify(requestWith("Bearer " + shown)); !errors.Is(err, ErrUnknown) || c.Client != "" {
			t.Errorf("%s: got %+v, %v, want ErrUnknown", name, c, err)
		}
	}
}

func TestKeyIdentifiesOnlyItsClient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab]{1,4}`), 1, 8, rapid.ID[string]).Draw(t, "keys")
		clients := []Client{{Name: "without a key", Credentials: []string{"ci"}}}
		for _, key := range keys {
			clients = append(clients, keyed(key, key, "ci"))
		}
		shown := rapid.StringMatching(`[ab]{0,4}`).Draw(t, "shown")
		c, err := registryOf(clients...).Identify(requestWith("Bearer " + shown))
		if err == nil && c.Client != shown || err != nil && strings.Contains(fmt.Sprint(keys, " "), " "+shown+" ") {
			t.Fatalf("%q is %q, %v", shown, c.Client, err)
		}
	})
}

func TestSharedKeyIdentifiesTheFirstClient(t *testing.T) {
	equal(t, "client", identify(t, registryOf(keyed("first", "k", "ci"), keyed("second", "k", "ci")), "Bearer k").Client, "first")
}
