package credential

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

func TestSecretNeverPrints(t *testing.T) {
	s := Secret("hunter2")
	in := struct {
		S Secret
		P *Secret
		L []Secret
	}{s, &s, []Secret{s}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10.3s"} {
		fmt.Fprintf(&out, verb+" "+verb+"\n", s, in)
	}
	out.Write(must(json.Marshal(in)))
	out.Write(must(yaml.Dump(in)))
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "s", s, "in", in)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "s", s, "in", in)
	fmt.Fprint(&out, errors.Join(fmt.Errorf("bad token %s", s)))
	for _, leak := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), fmt.Sprintf("%X", "hunter2")} {
		failIf(t, strings.Contains(out.String(), leak), "%q is in the output:\n%s", leak, out.String())
	}
	equal(t, "Reveal", s.Reveal(), "hunter2")
}

func TestSecretPrintsItsMask(t *testing.T) {
	inJSON := func(v any) string { return string(must(json.Marshal(v))) }
	for _, c := range []struct{ name, got, want string }{
		{"String", Secret("hunter2").String(), "•••"},
		{"String of an empty secret", Secret("").String(), ""},
		{"GoString", Secret("hunter2").GoString(), "•••"},
		{"width and precision", fmt.Sprintf("%20.1s|", Secret("hunter2")), "•••|"},
		{"Go syntax in a struct", fmt.Sprintf("%#v", struct{ S Secret }{"hunter2"}), "struct { S credential.Secret }{S:•••}"},
		{"JSON value", inJSON(Secret("hunter2")), `"•••"`},
		{"JSON of an empty secret", inJSON(Secret("")), `""`},
		{"JSON any", inJSON(map[string]any{"s": Secret("hunter2")}), `{"s":"•••"}`},
		{"YAML value", string(must(yaml.Dump(map[string]Secret{"s": "hunter2"}))), "s: •••\n"},
	} {
		equal(t, c.name, c.got, c.want)
	}
}

func TestSecretOutputDoesNotDependOnTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		verb := "%" + rapid.StringMatching(`[-+# 0]?[0-9]?(\.[0-9])?[vsqxXdtfegobcUT]`).Draw(t, "verb")
		a, b := rapid.StringN(1, -1, -1).Draw(t, "a"), rapid.StringN(1, -1, -1).Draw(t, "b")
		if one, other := fmt.Sprintf(verb, Secret(a)), fmt.Sprintf(verb, Secret(b)); one != other {
			t.Fatalf("%s: %q and %q", verb, one, other)
		}
	})
}

func TestSecretEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.StringMatching(`[ab]{0,3}`).Draw(t, "a")
		b := rapid.StringMatching(`[ab]{0,3}`).Draw(t, "b")
		if got := Secret(a).Equal(Secret(b)); got != (a == b) {
			t.Fatalf("%q and %q: %t", a, b, got)
		}
	})
}

func newTestRegistry(passThrough bool) *Registry {
	return newRegistry(func(c *Config) {
		c.PassThrough = passThrough
		c.Held = []Held{
			{Name: "ci", Kind: policy.User, Account: "octo-bot", Token: "ghp_held"},
			{Name: "ci-2", Kind: policy.User, Account: "octo-bot", Token: "ghp_held2"},
			{Name: "app", Kind: policy.OAuthApp, Token: "id:secret"},
			{Name: "old", Kind: policy.User, Account: "octo-bot", Token: "plain"},
		}
		c.Clients = []Client{keyed("builds", "weir-key", "ci", "app"), keyed("public", "other-key", "app")}
	})
}

func TestClientsOfOneAccountDivideItsWindows(t *testing.T) {
	client := func(name string, limit float64, credentials ...string) Client {
		c := keyed(name, name, credentials...)
		c.Guarantee, c.Limit = 0.1, limit
		return c
	}
	people, tagged := client("people", 1, "second"), client("tagged", 0.5, "third")
	people.Share = 3
	tagged.TagLimit, tagged.Priority = 0.2, policy.Batch
	r := newRegistry(func(c *Config) {
		c.Held = []Held{
			{Name: "bot", Kind: policy.User, Account: "robot", Token: "ghp_1"}, {Name: "second", Kind: policy.User, Account: "robot", Token: "ghp_2"},
			{Name: "own", Kind: policy.User, Token: "ghp_3"}, {Name: "third", Kind: policy.User, Token: "ghp_4"},
			{Name: "fourth", Kind: policy.User, Token: "ghp_5"},
		}
		c.Clients = []Client{client("ci", 0.5, "bot", "second"), people, client("solo", 0.9, "own"), tagged, keyed("single", "single", "fourth")}
	})
	both := []policy.ClientBudget{{Client: "ci", Share: 1, Guarantee: 0.1, Limit: 0.5}, {Client: "people", Share: 3, Guarantee: 0.1, Limit: 1}}
	alone := []policy.ClientBudget{{Client: "tagged", Share: 1, Guarantee: 0.1, Limit: 1, TagLimit: 0.2}}
	solo := []policy.ClientBudget{{Client: "solo", Share: 1, Guarantee: 0.1, Limit: 1}} // kept from callers who pass a token
	for key, want := range map[string][]policy.ClientBudget{
		"ci": both, "people": both, "solo": solo, "ghp_1": both, "ghp_3": solo, "tagged": alone, "single": nil,
	} {
		equal(t, key, identify(t, r, "Bearer "+key).Clients, want)
	}
}

func TestEachCredentialHasOneStableClass(t *testing.T) {
	b := newTestRegistry(true)
	classes := map[string]string{}
	for i := range 3000 {
		credential := fmt.Sprintf("ghp_%d", i%1000)
		class := identify(t, b, "Bearer "+credential).Class
		other := classes[class]
		stopIf(t, other != "" && other != credential, "%s and %s have one class", other, credential)
		classes[class] = credential
	}
	equal(t, "classes of 1000 credentials", len(classes), 1000)
}

func TestKindOfAPassedThroughCredential(t *testing.T) {
	b := newTestRegistry(true)
	kind := func(value string) policy.CallerKind { return identify(t, b, value).Kind }
	testservers.EqualEach(t, kind, map[string]policy.CallerKind{
		"Bearer ghp_a": policy.User, "Bearer ghs_a": policy.Installation, "Bearer abc": policy.User, basic("id:s"): policy.OAuthApp,
	})
	for name, values := range map[string][]string{"no credential": nil, "empty credential": {"  "}} {
		c := identify(t, b, values...)
		failIf(t, c.Kind != policy.Unauthenticated || c.Account != "egress:shared" || authorizationOf(c) != "", "%s: %+v", name, c)
	}
}

func TestClientsGetTheirHeldCredentials(t *testing.T) {
	b := newTestRegistry(false)
	builds := identify(t, b, "Bearer weir-key")
	failIf(t, builds.Client != "builds" || builds.Account != "octo-bot" || authorizationOf(builds) != "Bearer ghp_held", "%+v forwarded with %s", builds, authorizationOf(builds))
	public := identify(t, b, "token other-key")
	failIf(t, public.Kind != policy.OAuthApp || authorizationOf(public) != basic("id:secret"), "%+v forwarded with %s", public, authorizationOf(public))
	for _, c := range []struct {
		values []string
		want   error
	}{
		{nil, ErrMissing},
		{[]string{"Bearer stolen"}, ErrUnknown},
		{[]string{"Bearer ghp_held"}, ErrUnknown},
		{[]string{"Bearer weir-key", "Bearer other-key"}, ErrTwice},
	} {
		_, err := b.Identify(requestWith(c.values...))
		failIf(t, !errors.Is(err, c.want), "%q: got %v, want %v", c.values, err, c.want)
	}
}

func TestTokensOfOneUserShareTheAccountNotTheClass(t *testing.T) {
	b := newTestRegistry(true)
	one, two := identify(t, b, "Bearer ghp_held"), identify(t, b, "Bearer ghp_held2")
	failIf(t, one.Account != "octo-bot" || two.Account != "octo-bot" || one.Class == two.Class, "%+v and %+v", one, two)
	equal(t, "class of the same credential", identify(t, b, "Bearer weir-key").Class, one.Class)
}

func TestLabelsOfAccounts(t *testing.T) {
	key := NewHashKey()
	r := NewRegistry(Config{HashKey: key, Held: []Held{
		{Name: "ci", Token: "first"}, {Name: "ci-copy", Token: "first"}, {Name: "bot", Account: "octo-bot", Token: "second"},
	}})
	for account, want := range map[string]string{hash(key, "first"): "ci", "octo-bot": "octo-bot", hash(key, "other"): ""} {
		got, ok := r.Label(account)
		failIf(t, got != want || ok != (want != ""), "%s: %q, %v; want %q", account, got, ok, want)
	}
	testservers.EqualEach(t, ShortLabel, map[string]string{
		"0a1b2c3d4e5f60718293a4b5c6d7e8f9": "account 0a1b2c3d", "user:583231": "user:583231", "egress:default": "egress:default", "0a1b2c3d": "0a1b2c3d",
	})
}

// TestAllFormsOfATokenAreOneCredential sends each kind of token in each form in which the upstream accepts it. The client ID
// and the secret of an OAuth app are another caller, although a secret looks like an unprefixed token.
func TestAllFormsOfATokenAreOneCredential(t *testing.T) {
	const plain = "0123456789abcdef0123456789abcdef01234567"
	r, tokens := newTestRegistry(true), map[string]string{} // by class
	for _, token := range []string{
		plain, strings.ToUpper(plain), "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_held", "gho_x", "ghu_x", "ghs_x", "github_pat_x",
	} {
		want := identify(t, r, "Bearer "+token)
		for _, value := range []string{
			"Bearer " + token, "bearer " + token, "token " + token, "TOKEN " + token, basic("octocat:" + token), basic(token + ":"),
			basic(token + ":x-oauth-basic"), basic(token + ":X-OAuth-Basic"), basic("x:" + token), basic(":" + token), basic("x-access-token:" + token),
			basic("x-oauth-basic:" + token), basic("octo@example.com:" + token), basic(token + ":" + token),
			"BASIC" + strings.TrimPrefix(basic("git:"+token), "Basic"),
		} {
			got := identify(t, r, value)
			equal(t, value, got.Caller, want.Caller)
			equal(t, value+", forwarded", got.Passed, true)
		}
		other := tokens[want.Class]
		failIf(t, other != "", "%s and %s have one class", token, other)
		tokens[want.Class] = token
		failIf(t, strings.Contains(fmt.Sprintf("%+v", want), token), "the credential is visible: %+v", want)
	}
	// A held token needs no known prefix.
	equal(t, "held token", identify(t, r, basic("octo-bot:plain")).Caller, identify(t, r, "Bearer plain").Caller)
	for id, secret := range map[string]string{
		"id": "secret", "ghp_x": "password",
		"Iv1.0123456789abcdef": plain, "Iv23liABCDEFGHIJKLMN": plain, "Ov23liABCDEFGHIJKLMN": plain, "0123456789abcdef0123": plain,
	} {
		got, token := identify(t, r, basic(id+":"+secret)), identify(t, r, "Bearer "+secret)
		failIf(t, got.Kind != policy.OAuthApp || got.Account == token.Account || got.Class == token.Class, "%s: got %+v, want an OAuth app", id, got.Caller)
	}
}

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
	expectRefused(t, b, []error{ErrForm, ErrOwn},
		"Bearer "+key, "token "+key, "bearer  "+key, basic("x:"+key), basic(key+":"), basic(key+":x"), basic(key),
		key, "Bearer\t"+key, "Bearer: "+key, `Bearer "`+key+`"`, "Bearer="+key, "Bearer Bearer "+key,
		"Bearer "+key[:9], "Bearer x, Bearer "+key, "Basic "+key, "Digest response=\""+key+"\"",
	)
}

// Upstream credentials may contain the key prefix by chance.
func TestCredentialContainingTheKeyPrefixIsPassedThrough(t *testing.T) {
	expectForwarded(t, newTestRegistry(true), "Bearer ghp_weir_x", "Bearer my-weir_x", "Bearer weir", basic("my_weir_app:x"))
}

// registryOf returns a registry of clients without pass-through.
func registryOf(clients ...Client) *Registry {
	return newRegistry(func(c *Config) { c.PassThrough, c.Clients = false, clients })
}

func TestHashOrPartOfAKeyIdentifiesNoClient(t *testing.T) {
	long := strings.Repeat("k", 100)
	b := registryOf(keyed("long", long, "ci"), Client{Name: "without a key", Credentials: []string{"ci"}})
	sum := sha256.Sum256([]byte(long))
	c := identify(t, b, "Bearer "+long)
	stopIf(t, c.Client != "long", "got %+v, want the client long", c)
	expectRefused(t, b, []error{ErrUnknown},
		"Bearer "+hex.EncodeToString(sum[:]), "Bearer sha256:"+hex.EncodeToString(sum[:]), "Bearer "+string(sum[:]), // the hash of the key
		"Bearer "+long[:72], "Bearer "+long[:99], "Bearer "+long+"k", "Bearer "+long+"\x00", "Bearer "+strings.ToUpper(long),
		"Bearer "+long[:50]+" "+long[50:],
		"Bearer "+strings.Repeat("0", 64), "Bearer "+string(make([]byte, sha256.Size)), // the zero hash
		"Bearer long", // the name of the client
	)
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
			t.Fatalf("%q is %q, %v", shown, clientOf(c), err)
		}
	})
}

func TestSharedKeyIdentifiesTheFirstClient(t *testing.T) {
	equal(t, "client", identify(t, registryOf(keyed("first", "k", "ci"), keyed("second", "k", "ci")), "Bearer k").Client, "first")
}
