package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// outcome is the result of a request, as in Weir's own records.
type outcome int

const (
	hit       outcome = iota // served from the cache
	stale                    // a stale response instead of a refusal
	collapsed                // served by a coalesced call, or after polls
	validated                // a stored response that a 304 confirmed
	miss                     // a response of the upstream that could be stored
	bypass                   // a response of the upstream to a request without the cache, such as a write
	refused                  // refused because of a limit
	forbidden                // refused by the scope of the client
	own                      // answered by Weir itself, such as the rate limit status
)

// result is the outcome of one request, with its wait and its cost.
type result struct {
	at                                   time.Time
	operation, client, account, resource string
	outcome                              outcome
	waited                               time.Duration
	spent, without                       int
}

// Report is the prediction for a log.
type Report struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	Row
	// Skipped counts malformed lines. OtherHosts counts requests to hosts other than the upstream.
	Skipped    int `json:"skipped"`
	OtherHosts int `json:"other_hosts"`
	// WithoutETag counts reads whose response has no ETag in a log of another proxy. The report cannot know whether such a
	// response had changed: it assumes so if the size differs.
	WithoutETag int `json:"without_etag"`
	// Unnamed are the clients that the configuration does not name, at most maxNames of them. Each counts as a
	// separate account.
	Unnamed    []string  `json:"clients_not_configured"`
	Accounts   []Account `json:"accounts"`
	Clients    []Row     `json:"clients"`
	Operations []Row     `json:"operations"`
	// Series divides the time of the log into parts of the same length.
	Series []Part `json:"series"`
	// PartSeconds is the length of the parts.
	PartSeconds int `json:"part_seconds"`
}

// Row is the sum of some requests. Hits includes stale responses, and Forwarded counts the responses of the upstream except
// validations. Spent is in points of the primary limits, and Without is the same without Weir. The quantiles are those of
// the requests that waited.
type Row struct {
	Name      string  `json:"name,omitempty"`
	Requests  int     `json:"requests"`
	Hits      int     `json:"hits"`
	Stale     int     `json:"stale"`
	Collapsed int     `json:"collapsed"`
	Validated int     `json:"validated"`
	Forwarded int     `json:"forwarded"`
	Refused   int     `json:"refused"`
	Forbidden int     `json:"forbidden"`
	Own       int     `json:"own"`
	Spent     int     `json:"spent"`
	Without   int     `json:"spent_without_weir"`
	Waited    int     `json:"waited"`
	WaitP50   float64 `json:"wait_p50_seconds"`
	WaitP99   float64 `json:"wait_p99_seconds"`
	WaitTotal float64 `json:"wait_total_seconds"`

	waits map[time.Duration]int // in milliseconds
}

// Account is the use of one primary limit.
type Account struct {
	Account  string `json:"account"`
	Resource string `json:"resource"`
	Spent    int    `json:"spent"`
	Without  int    `json:"spent_without_weir"`
}

// Part has the numbers of a part of the time.
type Part struct {
	Start    time.Time `json:"start"`
	Requests int       `json:"requests"`
	Spent    int       `json:"spent"`
	Without  int       `json:"spent_without_weir"`
	Refused  int       `json:"refused"`
}

const (
	// maxNames bounds the rows of clients and accounts. Further names share the row otherNames.
	maxNames   = 1000
	otherNames = "(others)"
	// maxParts bounds the parts of the series. Their length doubles when the bound is reached.
	maxParts  = 120
	firstPart = 15 * time.Second
)

// recorder collects the results of a replay.
type recorder struct {
	Report
	clients, operations map[string]*Row
	accounts            map[accountResource]*Account
	unnamedClients      map[string]bool
	part                time.Duration
}

func newRecorder(start time.Time) *recorder {
	return &recorder{
		Report:  Report{From: start, To: start, Row: newRow("")},
		clients: map[string]*Row{}, operations: map[string]*Row{}, accounts: map[accountResource]*Account{}, unnamedClients: map[string]bool{},
		part: firstPart,
	}
}

func newRow(name string) Row { return Row{Name: name, waits: map[time.Duration]int{}} }

// unnamed records a client that the configuration does not name.
func (r *recorder) unnamed(client string) {
	if len(r.unnamedClients) < maxNames {
		r.unnamedClients[client] = true
	}
}

// rowOf returns the row with a name, or the row of the other names.
func rowOf(rows map[string]*Row, name string) *Row {
	if rows[name] == nil && len(rows) >= maxNames {
		name = otherNames
	}
	if rows[name] == nil {
		row := newRow(name)
		rows[name] = &row
	}
	return rows[name]
}

// add adds the result of one request.
func (r *recorder) add(x *result) {
	r.Row.add(x)
	rowOf(r.clients, x.client).add(x)
	rowOf(r.operations, x.operation).add(x)
	if x.resource != "" {
		key := accountResource{x.account, x.resource}
		if r.accounts[key] == nil && len(r.accounts) >= maxNames {
			key.account = otherNames
		}
		a := r.accounts[key]
		if a == nil {
			a = &Account{Account: key.account, Resource: key.resource}
			r.accounts[key] = a
		}
		a.Spent += x.spent
		a.Without += x.without
	}
	if x.at.After(r.To) {
		r.To = x.at
	}
	r.addToSeries(x)
}

// addToSeries adds a result to its part of the time.
func (r *recorder) addToSeries(x *result) {
	for x.at.Sub(r.From)/maxParts >= r.part { // a multiplication could overflow
		half := r.Series
		r.Series, r.part = nil, 2*r.part
		for i := 0; i < len(half); i += 2 {
			p := half[i]
			if i+1 < len(half) {
				next := half[i+1]
				p.Requests, p.Spent, p.Without, p.Refused = p.Requests+next.Requests, p.Spent+next.Spent, p.Without+next.Without, p.Refused+next.Refused
			}
			r.Series = append(r.Series, p)
		}
	}
	i := int(x.at.Sub(r.From) / r.part)
	for len(r.Series) <= i {
		r.Series = append(r.Series, Part{Start: r.From.Add(time.Duration(len(r.Series)) * r.part)})
	}
	p := &r.Series[i]
	p.Requests++
	p.Spent += x.spent
	p.Without += x.without
	if x.outcome == refused {
		p.Refused++
	}
}

func (row *Row) add(x *result) {
	row.Requests++
	switch x.outcome {
	case hit:
		row.Hits++
	case stale:
		row.Hits++
		row.Stale++
	case collapsed:
		row.Collapsed++
	case validated:
		row.Validated++
	case miss, bypass:
		row.Forwarded++
	case refused:
		row.Refused++
	case forbidden:
		row.Forbidden++
	case own:
		row.Own++
	}
	row.Spent += x.spent
	row.Without += x.without
	if waited := x.waited.Round(time.Millisecond); waited > 0 {
		row.Waited++
		row.WaitTotal += waited.Seconds()
		row.waits[waited]++
	}
}

// finish returns the complete report.
func (r *recorder) finish() *Report {
	report := r.Report
	report.finish()
	report.Unnamed = slices.Sorted(maps.Keys(r.unnamedClients))
	report.Clients, report.Operations = rows(r.clients), rows(r.operations)
	for _, a := range r.accounts {
		report.Accounts = append(report.Accounts, *a)
	}
	slices.SortFunc(report.Accounts, func(a, b Account) int {
		return cmp.Or(b.Without-a.Without, cmp.Compare(a.Account, b.Account), cmp.Compare(a.Resource, b.Resource))
	})
	report.PartSeconds = int(r.part / time.Second)
	return &report
}

// rows returns the rows with the largest use without Weir first.
func rows(byName map[string]*Row) (list []Row) {
	for _, row := range byName {
		row.finish()
		list = append(list, *row)
	}
	slices.SortFunc(list, func(a, b Row) int {
		return cmp.Or(b.Without-a.Without, b.Requests-a.Requests, cmp.Compare(a.Name, b.Name))
	})
	return list
}

func (row *Row) finish() { row.WaitP50, row.WaitP99 = row.quantile(0.5), row.quantile(0.99) }

// quantile returns a quantile of the waits in seconds.
func (row *Row) quantile(q float64) float64 {
	rest := int(q * float64(row.Waited))
	for _, d := range slices.Sorted(maps.Keys(row.waits)) {
		if rest -= row.waits[d]; rest < 0 {
			return d.Seconds()
		}
	}
	return 0
}

// Saved returns the part of the quota that Weir saves, in percent.
func (row *Row) Saved() float64 {
	if row.Without == 0 {
		return 0
	}
	return 100 * float64(row.Without-row.Spent) / float64(row.Without)
}

// Notes returns remarks that help to interpret the numbers. Names of clients are those of the log.
func (r *Report) Notes() (list []string) {
	if r.Skipped > 0 {
		list = append(list, fmt.Sprintf("Malformed lines that were skipped: %d.", r.Skipped))
	}
	if r.OtherHosts > 0 {
		list = append(list, fmt.Sprintf("Requests to other hosts than the upstream, not counted: %d.", r.OtherHosts))
	}
	if r.WithoutETag > 0 {
		list = append(list, fmt.Sprintf("Reads without an ETag in the log: %d. Whether their responses had changed is unknown, so the savings are an upper bound. Log the ETag as etag or sent_http_etag.", r.WithoutETag))
	}
	if n := len(r.Unnamed); n > 0 {
		list = append(list, fmt.Sprintf("Clients that the configuration does not name: %d, such as %s. Each counts as a separate account.",
			n, r.Unnamed[0]))
	}
	return list
}
