package credential

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

func TestNewKey(t *testing.T) {
	key, hash := NewKey()
	other, _ := NewKey()
	sum := sha256.Sum256([]byte(key.Reveal()))
	if hash != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Errorf("%s is not its hash", hash)
	}
	if !strings.HasPrefix(key.Reveal(), "weir_") || len(key.Reveal()) < len("weir_")+26 || key == other {
		t.Errorf("%s and %s", key.Reveal(), other.Reveal())
	}
}

// TestAttack59AKeyOfTheGatewayIsNeverPassedOn: whoever mistypes a key, or uses one
// that was taken back, does not show it to the upstream.
func TestAttack59AKeyOfTheGatewayIsNeverPassedOn(t *testing.T) {
	b := book(t, true)
	key, _ := NewKey()
	basic := func(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }
	for _, value := range []string{
		"Bearer " + key.Reveal(), "token " + key.Reveal(), "bearer  " + key.Reveal(),
		basic("x:" + key.Reveal()), basic(key.Reveal() + ":"), basic(key.Reveal() + ":x"), basic(key.Reveal()),
	} {
		if c, err := b.Identify(with(value)); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", value, c, err)
		}
	}
}

// TestNeverAnotherClientsKey: whatever is shown, it is the client whose key it is,
// or none.
func TestNeverAnotherClientsKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab]{1,4}`), 1, 8, rapid.ID[string]).Draw(t, "keys")
		config := Config{Dialect: &policy.Dialect{}, HashKey: NewHashKey(), Held: []Held{{Name: "ci", Kind: policy.User, Token: "held"}}}
		for _, key := range keys {
			config.Clients = append(config.Clients, Client{Name: key, Key: sha256.Sum256([]byte(key)), Credentials: []string{"ci"}})
		}
		config.Clients = append(config.Clients, Client{Name: "without a key", Credentials: []string{"ci"}})
		shown := rapid.StringMatching(`[ab]{0,4}`).Draw(t, "shown")
		c, err := NewBook(config).Identify(with("Bearer " + shown))
		if err == nil && c.Client != shown || err != nil && strings.Contains(fmt.Sprint(keys, " "), " "+shown+" ") {
			t.Fatalf("%q is %q, %v", shown, c.Client, err)
		}
	})
}

func TestTheFirstOfTwoClientsWithOneKey(t *testing.T) {
	key := sha256.Sum256([]byte("k"))
	b := NewBook(Config{HashKey: NewHashKey(), Held: []Held{{Name: "ci", Token: "held"}}, Clients: []Client{
		{Name: "first", Key: key, Credentials: []string{"ci"}},
		{Name: "second", Key: key, Credentials: []string{"ci"}},
	}})
	if c := identify(t, b, "Bearer k"); c.Client != "first" {
		t.Errorf("%+v", c)
	}
}
