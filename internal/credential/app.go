package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// App is an app that is installed in an organization, and how it proves that: by its
// private key, for which the upstream gives it tokens that live for an hour.
type App struct {
	// Upstream is the API that the app is of: a token of one goes to no other.
	Upstream     string
	ID           string
	Installation int64
	// Key is the private key, RSA, in PEM.
	Key Secret
	// Permissions are those that the tokens have, such as contents: read; all that the
	// installation has while empty.
	Permissions map[string]string
}

// identity names the tokens that are the app's: two with other permissions share none.
func (a *App) identity() string {
	text, err := json.Marshal([]any{a.Upstream, a.ID, a.Installation, a.Permissions}) // of a map the keys are sorted
	if err != nil {
		panic(err) // text and numbers
	}
	return string(text)
}

// errAppKey does not quote what is wrong: that is the key.
var errAppKey = errors.New("is not an RSA private key in PEM (BEGIN RSA PRIVATE KEY, or BEGIN PRIVATE KEY)")

// CheckAppKey reports whether a text is a key that an [App] can have.
func CheckAppKey(text Secret) error {
	_, err := parseAppKey(text)
	return err
}

func parseAppKey(text Secret) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text.Reveal()))
	if block == nil {
		return nil, errAppKey
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		if key, ok := parsed.(*rsa.PrivateKey); ok {
			return key, nil
		}
	}
	return nil, errAppKey
}

const (
	// issuedBefore is how far back the time of issue lies, for clocks that differ;
	// provenFor is how long an assertion holds: the upstream takes ten minutes at most.
	issuedBefore = time.Minute
	provenFor    = 9 * time.Minute
)

// assertion is the app's proof of who it is: a JWT (RFC 7519) signed by RS256 (RFC 7518
// section 3.3).
func (a *App) assertion(now time.Time) (Secret, error) {
	key, err := parseAppKey(a.Key)
	if err != nil {
		return "", fmt.Errorf("the app's key %w", err)
	}
	claims, err := json.Marshal(map[string]any{
		"iss": a.ID, "iat": now.Add(-issuedBefore).Unix(), "exp": now.Add(provenFor).Unix(),
	})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode(claims)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("the app's key cannot sign")
	}
	return Secret(signed + "." + encode(signature)), nil
}

// AppToken is an installation token.
type AppToken struct {
	Value   Secret
	Expires time.Time
}

// TokenEndpoint asks the upstream for installation tokens.
type TokenEndpoint struct {
	// Upstream is the API's base URL.
	Upstream *url.URL
	// Accept is the media type that is asked for.
	Accept    string
	Transport http.RoundTripper
}

// maxIssued bounds the answer that tells a token.
const maxIssued = 64 << 10

// refusedIssue is an answer other than 201.
type refusedIssue struct {
	status     int
	retryAfter time.Duration
}

func (r *refusedIssue) Error() string {
	return fmt.Sprintf("the API issues no installation token: %d %s", r.status, http.StatusText(r.status))
}

// issue gets a new token. Errors quote nothing that the upstream has said. Redirects
// are not followed: no other host gets the assertion.
func (i *TokenEndpoint) issue(ctx context.Context, a *App) (AppToken, error) {
	req, err := i.request(ctx, a)
	if err != nil {
		return AppToken{}, err
	}
	resp, err := i.Transport.RoundTrip(req)
	if err != nil {
		return AppToken{}, unheard(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxIssued))
	switch {
	case resp.StatusCode != http.StatusCreated:
		seconds, _ := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16)
		return AppToken{}, &refusedIssue{resp.StatusCode, time.Duration(seconds) * time.Second}
	case err != nil:
		return AppToken{}, errors.New("the answer with an installation token broke off")
	}
	var issued struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	if json.Unmarshal(text, &issued) != nil || !sendable(issued.Token) || !issued.Expires.After(time.Now()) {
		return AppToken{}, errors.New("the API answered 201, but with no installation token that could be used")
	}
	return AppToken{Secret(issued.Token), issued.Expires}, nil
}

// unheard is why there was no answer, without what a bad one said: errors of net/http quote it.
func unheard(err error) error {
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &op):
		return fmt.Errorf("the API cannot be asked for an installation token: %w", err)
	}
	return errors.New("the API cannot be asked for an installation token: it gave no valid answer")
}

func (i *TokenEndpoint) request(ctx context.Context, a *App) (*http.Request, error) {
	proof, err := a.assertion(time.Now())
	if err != nil {
		return nil, err
	}
	body := []byte("{}")
	if len(a.Permissions) > 0 {
		if body, err = json.Marshal(map[string]any{"permissions": a.Permissions}); err != nil {
			return nil, err
		}
	}
	at := i.Upstream.JoinPath("app", "installations", strconv.FormatInt(a.Installation, 10), "access_tokens")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the API's URL cannot be asked for installation tokens")
	}
	req.Header.Set("Authorization", "Bearer "+proof.Reveal())
	req.Header.Set("Accept", cmp.Or(i.Accept, "application/json"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "weir")
	return req, nil
}

// sendable reports whether a header field can carry a token.
func sendable(token string) bool {
	return token != "" && !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}
