package proxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/cors"
	"github.com/weirgate/weir/proxy/record"
)

// rateLimitOperation is the operation that Weir answers from the ledger.
const rateLimitOperation = "rate-limit/get"

// answerFromLedger writes the rate limit status from the ledger, and reports whether a response was written. These
// requests are forwarded instead:
//   - a request with no-cache
//   - a request with a credential that the upstream refused, and with a credential of the client until the upstream has
//     accepted it
//   - a request for an API version that Weir does not know
//   - every request while the ledger is unavailable, or the upstream has no limits
func (g *Gateway) answerFromLedger(a *attempt) bool {
	if a.cacheControl.Has("no-cache") {
		return false
	}
	caller := *a.caller
	if caller.Kind != policy.Unauthenticated && !g.tokens.Has(caller.Class, a.identity.Credential != nil) {
		return false
	}
	version := cmp.Or(a.in.Header.Get(g.Dialect.VersionHeader), g.Dialect.Version)
	if !slices.Contains(g.Dialect.Versions, version) {
		return false
	}
	body, err := g.rateLimitStatus(a, version < g.Dialect.NoRateSince)
	if err != nil || body == "" {
		return false
	}
	a.result.cache = record.CacheStatus{Hit: true, Detail: "ledger", Own: true}
	a.publish()
	sum := sha256.Sum256([]byte(body))
	status := &cache.Entry{Status: http.StatusOK, Body: []byte(body), Answered: time.Now(), Header: http.Header{
		"Cache-Control": {"no-cache"}, "Content-Type": {"application/json; charset=utf-8"},
		"Etag": {strconv.Quote(hex.EncodeToString(sum[:16]))},
	}}
	h := a.w.Header()
	code := copyEntryHeader(a, status, status.Answered, h)
	h.Del("Age") // the status is not a stored response
	cors.Allow(h, g.exposed)
	g.finishHeader(a.exchange, code, h)
	a.w.WriteHeader(code)
	if code == http.StatusOK && a.method != http.MethodHead {
		_, _ = io.WriteString(&a.w, body)
	}
	return true
}

// rateLimitStatus returns the body of the rate limit status. The body contains the resources of the dialect in the order
// of the API's documents (Document B section 2.6), then the resources that the upstream has named for the account, and
// withRate the deprecated top-level rate. If a resource is unlimited, the status is empty.
func (g *Gateway) rateLimitStatus(a *attempt, withRate bool) (string, error) {
	ctx, caller := a.in.Context(), *a.caller
	names := g.Dialect.Resources()
	named, err := g.Ledger.Resources(ctx, caller.Account)
	if err != nil {
		return "", err
	}
	for _, name := range named {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var resources []string
	var core string
	for _, name := range names {
		b, _ := g.Ledger.Budget(caller, name)
		if b.Unlimited {
			return "", nil
		}
		budget := fmt.Sprintf(`{"limit":%d,"used":%d,"remaining":%d,"reset":%d}`, b.Limit, b.Used, b.Remaining, b.Reset.Unix())
		resources = append(resources, strconv.Quote(name)+":"+budget)
		if name == policy.Core {
			core = budget
		}
	}
	body := `{"resources":{` + strings.Join(resources, ",") + "}"
	if withRate {
		body += `,"rate":` + core
	}
	return body + "}", nil
}
