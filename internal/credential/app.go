package credential

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/x509"
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

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/weirgate/weir/policy"
)

// App is an installed app. The app proves its identity with its private key and gets tokens that expire after an hour.
type App struct {
	Upstream     *url.URL // base URL of the API that issues the tokens
	Accept       string   // media type of the request for a token
	ID           string
	Installation int64
	Key          Secret // RSA private key in PEM
	// Permissions restrict the tokens, such as contents: read. If Permissions is empty, the tokens have all permissions
	// of the installation.
	Permissions map[string]string
}

// AppToken is an installation token.
type AppToken struct {
	Value   Secret
	Expires time.Time
	// Minted is the time at which a replica received the token from the upstream. It is zero for a token of a replica of
	// version 0.2.
	Minted time.Time
}

// identity identifies the tokens of the app. Apps with different upstreams or permissions never share a token.
func (a *App) identity() string {
	return fmt.Sprintf("%q %q %d %q", a.Upstream, a.ID, a.Installation, a.Permissions) // sorts map keys
}

// errAppKey reports that an [App.Key] is not an RSA private key. The message omits the text, which may be a private
// key.
var errAppKey = errors.New("not an RSA private key in PEM (BEGIN RSA PRIVATE KEY or BEGIN PRIVATE KEY)")

// ParseAppKey reads an [App.Key].
func ParseAppKey(text Secret) (*rsa.PrivateKey, error) {
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
	// assertionSkew is subtracted from the issue time of an assertion, because clocks differ.
	assertionSkew = time.Minute
	// assertionLifetime is below the upstream's maximum of ten minutes.
	assertionLifetime = 9 * time.Minute
	// maxTokenBody bounds the response with a token, in bytes.
	maxTokenBody = 64 << 10
)

// assertion returns the app's proof of identity, a JWT signed with RS256.
func (a *App) assertion(now time.Time) (string, error) {
	key, err := ParseAppKey(a.Key)
	if err != nil {
		return "", err
	}
	options := (&jose.SignerOptions{}).WithType("JWT")
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, options)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer:   a.ID,
		IssuedAt: jwt.NewNumericDate(now.Add(-assertionSkew)),
		Expiry:   jwt.NewNumericDate(now.Add(assertionLifetime)),
	}).Serialize()
}

// AccountOfInstallation returns the account of an app's installation.
func AccountOfInstallation(id int64) string { return "installation:" + strconv.FormatInt(id, 10) }

// limitPause is the shortest pause after a limit error (Document B section 7).
const limitPause = time.Minute

// issueError is a response without a token.
type issueError struct {
	status int
	limit  string        // name of the limit answer, or empty
	pause  time.Duration // until the next request, at least
	clock  time.Duration // by which the upstream's clock is ahead, or zero
}

// newIssueError returns the error of a response that arrived at now.
func newIssueError(resp *http.Response, body []byte, now time.Time) *issueError {
	wait, _ := policy.ReadRetryAfter(resp.Header, now)
	e := &issueError{status: resp.StatusCode, pause: wait}
	date, _ := policy.ReadDate(resp.Header, now)
	if !date.IsZero() {
		e.clock = date.Sub(now)
	}
	row, _ := policy.RecognizeLimit(policy.UpstreamAnswer{Status: resp.StatusCode, Header: resp.Header, Body: body})
	if row == nil || row.Kind == policy.LimitNone {
		return e
	}
	if e.pause == 0 && (row.Kind == policy.LimitPrimary || resp.Header.Get("X-Ratelimit-Remaining") == "0") {
		if date.IsZero() {
			date = now
		}
		if reset, v := policy.RateReset.ParseUnix(resp.Header.Get("X-Ratelimit-Reset"), date); v == policy.InRange {
			e.pause = reset.Sub(date)
		}
	}
	e.limit, e.pause = row.Name, max(e.pause, limitPause)
	return e
}

// issueRemedies are the remedies by the status of a response without a token. The keys are those of a credential.
var issueRemedies = map[int]string{
	http.StatusUnauthorized:        "; check app.id, app.key and the clock",
	http.StatusForbidden:           "; check whether the installation is suspended",
	http.StatusNotFound:            "; check app.installation and upstream.url",
	http.StatusUnprocessableEntity: "; check app.permissions, which the installation must have",
}

func (e *issueError) Error() string {
	text := fmt.Sprintf("request installation token: upstream returned %d %s", e.status, http.StatusText(e.status))
	if e.limit != "" {
		return text
	}
	return text + issueRemedies[e.status]
}

// issue requests a new token from the upstream. If the upstream refuses the assertion and its clock differs, issue repeats
// the request with the time of that clock.
func (a *App) issue(ctx context.Context, transport http.RoundTripper) (AppToken, error) {
	token, err := a.request(ctx, transport, time.Now())
	refused, ok := errors.AsType[*issueError](err)
	if ok && refused.status == http.StatusUnauthorized && refused.clock.Abs() >= assertionSkew/2 {
		return a.request(ctx, transport, time.Now().Add(refused.clock))
	}
	return token, err
}

// request requests a new token with an assertion of the given time. Errors do not quote the response, which may contain a
// token. Redirects are not followed, so that no other host gets the assertion.
func (a *App) request(ctx context.Context, transport http.RoundTripper, at time.Time) (AppToken, error) {
	proof, err := a.assertion(at)
	if err != nil {
		return AppToken{}, fmt.Errorf("request installation token: app key: %w", err)
	}
	body, err := json.Marshal(struct {
		Permissions map[string]string `json:"permissions,omitempty"`
	}{a.Permissions})
	if err != nil {
		return AppToken{}, err
	}
	target := a.Upstream.JoinPath("app", "installations", strconv.FormatInt(a.Installation, 10), "access_tokens")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return AppToken{}, errors.New("request installation token: invalid upstream URL")
	}
	req.Header.Set("Authorization", "Bearer "+proof)
	req.Header.Set("Accept", cmp.Or(a.Accept, "application/json"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "weir")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		// The errors of net/http quote malformed responses. Network and context errors do not.
		_, network := errors.AsType[*net.OpError](err)
		if network || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return AppToken{}, fmt.Errorf("request installation token: %w", err)
		}
		return AppToken{}, errors.New("request installation token: invalid HTTP response")
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenBody))
	switch {
	case resp.StatusCode != http.StatusCreated:
		return AppToken{}, newIssueError(resp, text, time.Now())
	case err != nil:
		return AppToken{}, errors.New("request installation token: response truncated")
	}
	var issued struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	invalid := func(r rune) bool { return r <= ' ' || r > '~' } // a header field cannot carry these characters
	if json.Unmarshal(text, &issued) != nil || issued.Token == "" || strings.ContainsFunc(issued.Token, invalid) {
		return AppToken{}, errors.New("request installation token: upstream returned 201 without a usable token")
	}
	// The clocks may differ, so the lifetime counts from the Date of the response.
	now, date := time.Now(), time.Now()
	if at, _ := policy.ReadDate(resp.Header, now); !at.IsZero() {
		date = at
	}
	if !issued.Expires.After(date) {
		return AppToken{}, fmt.Errorf("request installation token: upstream returned a token that has expired (expires_at %s)", issued.Expires.UTC().Format(time.RFC3339))
	}
	expires, _ := policy.TokenExpiry.Date(issued.Expires, date)
	return AppToken{Secret(issued.Token), now.Add(expires.Sub(date)), now}, nil
}
