package limitstest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Responder passes whole responses of the upstream to the replicas of a ledger. The numbers of the responses may have any
// value.
type Responder struct {
	*testing.T
	replicas []*limits.Limiter
	ledgers  []Ledger
	tick     func() // a heartbeat of all replicas
	sent     int
}

// NewResponder returns a responder for replicas that share a ledger.
func NewResponder(t *testing.T, tick func(), replicas ...Ledger) *Responder {
	r := &Responder{T: t, ledgers: replicas, tick: tick}
	for _, ledger := range replicas {
		r.replicas = append(r.replicas, limits.NewLimiter(ledger))
	}
	return r
}

// claims returns a claim each for a read, a search, a creation and a GraphQL call.
func claims() []limits.Claim {
	return []limits.Claim{
		{Operation: "users/get", Resource: policy.Core, Points: 1},
		{Operation: "search/repos", Resource: policy.Search, Points: 1},
		{Operation: "issues/create", Resource: policy.Core, Points: 5, CreatesContent: true},
		{Operation: policy.GraphQL, Resource: policy.GraphQL, Points: 1, Query: "q", UpperEstimate: 3},
	}
}

func (r *Responder) acquire(l *limits.Limiter, account string, c limits.Claim) (*limits.Permit, error) {
	return l.Acquire(context.Background(), c, policy.Caller{Account: account, Kind: policy.User}, time.Now())
}

// Answer passes a response to a request of an account. It returns false if the ledger refuses the request.
func (r *Responder) Answer(account, raw string) bool {
	r.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), nil)
	if err != nil {
		return true // the transport returns an error
	}
	body, _ := io.ReadAll(resp.Body) // may be cut off
	_ = resp.Body.Close()
	l, c := r.replicas[r.sent%len(r.replicas)], claims()[r.sent/len(r.replicas)%len(claims())]
	r.sent++
	p, err := r.acquire(l, account, c)
	if err != nil {
		return false
	}
	o := limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: l.ReadRate(resp.Header), Succeeded: resp.StatusCode < 400,
		Failed: resp.StatusCode >= 500, Unauthorized: resp.StatusCode == http.StatusUnauthorized}
	graphQL := c.Resource == policy.GraphQL
	e := l.ReadLimitError(account, policy.UpstreamAnswer{Status: resp.StatusCode, Header: resp.Header, GraphQL: graphQL, Body: body})
	if e.Kind != policy.NotLimited {
		o.RetryAfter, _ = policy.ReadRetryAfter(resp.Header, time.Now())
	}
	if e.Repeated == 0 {
		o.Limited = e.Kind
	}
	if graphQL && resp.StatusCode == http.StatusOK {
		o.Cost, o.Succeeded, _ = policy.ReadGraphQLCost(body)
	}
	if _, err := l.Settle(context.Background(), *p, o); err != nil {
		r.Errorf("settle: %v, after %q", err, raw)
	}
	return true
}

// usableAfter is an hour and the margins for rounding.
const usableAfter = time.Hour + 5*time.Second

// CheckUsable waits for an hour. Every replica must then be able to use the account, and to describe it.
func (r *Responder) CheckUsable(accounts ...string) {
	r.Helper()
	time.Sleep(usableAfter)
	for _, account := range accounts {
		for i, l := range r.replicas {
			for _, c := range claims() {
				r.tick()
				p, err := r.acquire(l, account, c)
				for range 10 { // the other replica returns spare tokens, and the probe of a doubt has ended
					if err != nil {
						time.Sleep(time.Second)
						r.tick()
						p, err = r.acquire(l, account, c)
					}
				}
				if err != nil {
					r.Errorf("replica %d, %s of %s: %v after an hour, at %v", i, c.Operation, account, err, time.Now().UTC())
					continue
				}
				time.Sleep(time.Second) // the slow start, and the probe of a doubt
				o := reported(c.Resource, 1, 5000, time.Now().Add(time.Hour))
				o.Succeeded = true
				if _, err := l.Settle(context.Background(), *p, o); err != nil {
					r.Error(err)
				}
				time.Sleep(20 * time.Second) // a slow start ends
			}
		}
	}
	for i, ledger := range r.ledgers {
		list, err := ledger.Accounts(context.Background(), 1000)
		if err != nil {
			r.Errorf("replica %d: %v", i, err)
		}
		for _, a := range list {
			if len(a.Budgets) > 400 {
				r.Errorf("%s has %d budgets", a.Name, len(a.Budgets))
			}
		}
	}
}

// strange are numbers of no sane upstream, and numbers at the bounds of ranges.
var strange = []string{
	"", "0", "1", "-1", "59", "60", "3600", "3601", "4999", "5000", "15000", "999999999", "1000000000", "1000000001", "2147483648", "9000000000",
	"100000000000000", "9007199254740993", "9223372036", "9223372037", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
	"99999999999999999999999", "1e14", "1.5", "0x10", "NaN", "+5", " 7", "many", "5,6", "00000000000000000007",
}

// RandomResponse returns a response with some strange numbers and dates.
func RandomResponse(rng *rand.Rand) string {
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	number := func(usual ...string) string {
		if rng.IntN(3) > 0 {
			return pick(usual...)
		}
		return pick(strange...)
	}
	offset := func() time.Duration {
		return []time.Duration{0, 0, 0, time.Second, time.Minute, 50 * time.Minute, 2 * time.Hour, 24 * time.Hour, 80 * 365 * 24 * time.Hour}[rng.IntN(9)] *
			time.Duration(1-2*rng.IntN(2))
	}
	unix := func() string {
		if rng.IntN(4) == 0 {
			return pick(strange...)
		}
		return strconv.FormatInt(time.Now().Add(time.Duration(rng.IntN(3700))*time.Second+offset()).Unix(), 10)
	}
	date := func() string {
		return pick("", "never", time.Now().Add(offset()).UTC().Format(http.TimeFormat), time.Now().Add(offset()).UTC().Format(http.TimeFormat))
	}
	bodies := []string{
		`{}`, `{"data":{"rateLimit":{"cost":%s}}}`, `{"message":"API rate limit exceeded for user ID 7."}`, `{"message":"You have exceeded a secondary rate limit."}`,
		`{"message":"was submitted too quickly"}`, `{"data":{"rateLimit":{"cost":%s}},"errors":[{"type":"RATE_LIMITED"}]}`, ``,
	}
	body := bodies[rng.IntN(len(bodies))]
	if strings.Contains(body, "%s") {
		body = fmt.Sprintf(body, number("1", "2", "50"))
	}
	used := number("10", "4999", "5000", "60")
	var text strings.Builder
	fmt.Fprintf(&text, "HTTP/1.1 %s X\r\nContent-Length: %d\r\n", pick("200", "200", "200", "201", "304", "401", "403", "404", "422", "429", "500"), len(body))
	for name, value := range map[string]string{
		"X-Ratelimit-Limit": number("5000", "60", "30", "15000"), "X-Ratelimit-Used": used, "X-Ratelimit-Remaining": number("0", "10", "4999"),
		"X-Ratelimit-Reset": unix(), "X-Ratelimit-Resource": pick("core", "core", "search", "graphql", "", "invented", strconv.Itoa(rng.IntN(1e6)), "points"),
		"Retry-After": pick("", number("1", "60"), date()), "Date": date(), "Age": number("0"), "Cache-Control": "max-age=" + number("60"),
	} {
		if value != "" && rng.IntN(6) > 0 {
			fmt.Fprintf(&text, "%s: %s\r\n", name, value)
		}
	}
	return text.String() + "\r\n" + body
}

// RunResponses passes n random responses to accounts, and checks at intervals that every account is usable after an hour.
func (r *Responder) RunResponses(n int, rng *rand.Rand) {
	r.Helper()
	const accounts, perRound = 20, 500
	var names []string
	for i := range accounts {
		names = append(names, fmt.Sprint("a", i))
	}
	for i := range n {
		for !r.Answer(names[rng.IntN(accounts)], RandomResponse(rng)) {
			time.Sleep(time.Duration(rng.IntN(300)) * time.Second)
		}
		if i%perRound == perRound-1 || i == n-1 {
			r.CheckUsable(names...)
		}
		if r.Failed() {
			r.Fatalf("after %d responses", i+1)
		}
	}
}
