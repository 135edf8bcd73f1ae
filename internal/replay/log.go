package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weirgate/weir/limits"
)

// Request is one request of a log.
type Request struct {
	Start  time.Time
	Method string
	// URL has the path and the query, and the host if the log has it. In an access log of Weir the query is missing, and
	// TargetHash identifies the path with its query.
	URL        *url.URL
	TargetHash string
	// Client is the name of a client or user, and Account is the account in an access log of Weir. Both may be empty.
	Client, Account string
	// Status is the status of the upstream's response, or 0 if it is unknown.
	Status int
	// Bytes is the size of the response, or -1 if it is unknown. ETag is its ETag, or empty.
	Bytes int64
	ETag  string
	// Latency is the response time of the upstream, or 0 if it is unknown.
	Latency time.Duration
	// Spent is the quota that a GraphQL call cost, or 0 if it is unknown.
	Spent int
	// FromWeir marks a line of Weir's access log. In such a line, Changed means that the upstream replaced a stored response,
	// and Own means that Weir responded without the cache and the upstream.
	FromWeir, Changed, Own bool
}

// Format is the format of a log.
type Format string

// Formats. Auto recognizes the format from the beginning of the log.
const (
	Auto  Format = "auto"
	Weir  Format = "weir"
	JSONL Format = "jsonl"
	HAR   Format = "har"
)

const (
	// maxLine bounds the bytes of one line.
	maxLine = 1 << 20
	// recognized is the number of bytes from which Auto recognizes a format.
	recognized = 64 << 10
)

// Log is a log to read.
type Log struct {
	Name   string // for errors
	Reader io.Reader
	Format Format
	// SkipInvalid skips malformed lines instead of stopping with an error. Skipped counts them.
	SkipInvalid bool
	Skipped     int
}

// Requests returns the requests in the order of the log. An error is the last element.
func (l *Log) Requests() iter.Seq2[Request, error] {
	in := bufio.NewReaderSize(l.Reader, recognized)
	start, err := in.Peek(recognized)
	if err != nil && !errors.Is(err, io.EOF) {
		return func(yield func(Request, error) bool) { yield(Request{}, fmt.Errorf("read log %s: %w", l.Name, err)) }
	}
	format := l.Format
	if format == Auto {
		format = recognize(start)
	}
	switch format {
	case HAR:
		return l.harRequests(in)
	case Weir:
		return l.lines(in, parseWeirLine)
	default:
		return l.lines(in, parseJSONLine)
	}
}

// recognize returns the format of a log from its beginning.
func recognize(start []byte) Format {
	if bytes.HasPrefix(start, []byte("time=")) || bytes.HasPrefix(start, []byte(`{"time":`)) && bytes.Contains(start, []byte(`,"level":"`)) {
		return Weir
	}
	d := json.NewDecoder(bytes.NewReader(start))
	_, _ = d.Token() // the opening brace
	if first, _ := d.Token(); first == "log" {
		return HAR
	}
	return JSONL
}

// errOther marks a line that is no request, such as another message of Weir.
var errOther = errors.New("no request")

// lines returns the requests of a log with one request in each line. Empty lines are ignored.
func (l *Log) lines(in *bufio.Reader, parse func(line []byte) (Request, error)) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		for number := 1; ; number++ {
			line, err := readLine(in)
			if errors.Is(err, io.EOF) {
				return
			}
			var r Request
			if err == nil && len(line) == 0 {
				continue
			}
			if err == nil {
				r, err = parse(line)
			}
			switch {
			case errors.Is(err, errOther):
				continue
			case err != nil && l.SkipInvalid && !errors.Is(err, errRead):
				l.Skipped++
				continue
			case err != nil:
				yield(Request{}, fmt.Errorf("read log %s:%d: %w", l.Name, number, err))
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// errRead marks an error of the file itself, after which no line can be read.
var errRead = errors.New("the file cannot be read")

// readLine returns the next line without blanks at its ends. At the end of the file it returns io.EOF.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, more, err := in.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		case err != nil:
			return nil, fmt.Errorf("%w: %w", errRead, err)
		}
		if len(line) <= maxLine {
			line = append(line, part...)
		}
		if !more {
			break
		}
	}
	if len(line) > maxLine {
		return nil, errors.New("the line is longer than 1 MiB; shorten it to one request")
	}
	return bytes.TrimSpace(line), nil
}

// weirLine contains the values of a line of Weir's access log by key.
type weirLine map[string]string

// parsedValue parses the value of a key. Without the key it returns zero. problem keeps the first error.
func parsedValue[T any](w weirLine, key string, parse func(string) (T, error), problem *error) (value T) {
	text, ok := w[key]
	if !ok {
		return value
	}
	value, err := parse(text)
	if err != nil {
		*problem = cmp.Or(*problem, invalid(key, text, "the line as Weir wrote it"))
	}
	return value
}

// maxNumber bounds numbers, so that calculations with them do not overflow.
const maxNumber = 1 << 48

func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (n < 0 || n > maxNumber) {
		err = errors.New("out of range")
	}
	return n, err
}

// readJSONLine reads a line of Weir's log in JSON.
func readJSONLine(line []byte) (weirLine, error) {
	var o object
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, jsonError(err)
	}
	w := weirLine{}
	for key := range o {
		if value, _ := o.text([]string{key}); value != "" {
			w[key] = value
		}
	}
	return w, nil
}

// readWeirLine reads the keys and values of a line. Values with blanks are quoted as in Go.
func readWeirLine(line string) (weirLine, error) {
	w := weirLine{}
	for line != "" {
		key, rest, ok := strings.Cut(line, "=")
		if !ok || strings.ContainsAny(key, " \"") {
			return nil, errors.New("no line of Weir's log, which has the form key=value or is JSON; use --format jsonl or har for other logs")
		}
		value, after, _ := strings.Cut(rest, " ")
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, invalid(key, rest, "a complete quoted text")
			}
			value, _ = strconv.Unquote(quoted) // valid, because QuotedPrefix has checked it
			after = strings.TrimPrefix(rest[len(quoted):], " ")
		}
		w[key], line = value, after
	}
	return w, nil
}

// parseWeirLine parses a line of Weir's access log. For other messages and for background requests, it returns
// errOther.
func parseWeirLine(line []byte) (r Request, err error) {
	var w weirLine
	unit := time.Second
	switch {
	case bytes.Contains(line, []byte(" msg=request ")):
		w, err = readWeirLine(string(line))
	case bytes.Contains(line, []byte(`,"msg":"request",`)):
		unit = time.Nanosecond // of durations in JSON
		w, err = readJSONLine(line)
	default:
		return r, errOther
	}
	if err != nil {
		return r, err
	}
	number := func(key string) int { return int(parsedValue(w, key, parseNumber, &err)) }
	duration := func(key string) time.Duration {
		return parsedValue(w, key, func(text string) (time.Duration, error) { return parseDuration(text, unit) }, &err)
	}
	end, elapsed, waited, attempts := parsedValue(w, "time", parseTime, &err), duration("elapsed"), duration("waited"), number("attempts")
	r = Request{
		Start: end.Add(-elapsed), Method: w["method"], TargetHash: w["target"], Client: clientLabel(w["client"]), Account: w["account"],
		Status: number("status"), Bytes: int64(number("bytes")), Spent: number("spent"), FromWeir: true,
	}
	path, cacheStatus := w["path"], w["cache"]
	switch {
	case err != nil:
		return Request{}, err
	case w["msg"] != "request", w["background"] == "true":
		return Request{}, errOther
	case end.IsZero():
		return Request{}, missing("time", "the time in RFC 3339")
	case r.Method == "":
		return Request{}, missing("method", "the method of the request")
	case path == "":
		return Request{}, errors.New(`no field "path"; an earlier version of Weir wrote the log; record a log with this version`)
	}
	has := func(part string) bool { return strings.Contains(cacheStatus, part) }
	if attempts > 0 {
		r.Latency = max(0, elapsed-waited) / time.Duration(attempts)
		// Statistics are computed again (202) after a change.
		r.Changed = (has("fwd=stale") || has("fwd=request")) && (has("fwd-status=200") || has("fwd-status=202"))
	}
	_, detail, _ := strings.Cut(cacheStatus, "; detail=")
	limited := slices.Contains(limitReasons, limits.Reason(detail))
	if attempts == 0 && limited {
		r.Status = 0
	}
	r.Own = attempts == 0 && !limited && !has("; hit") && !has("; collapsed")
	if !strings.HasPrefix(path, "/") { // a file of another host, or a request without an operation
		r.Own, path = true, "/"
	}
	r.URL, err = parseTarget(path)
	return r, err
}

// limitReasons are the reasons with which Weir refuses a request that the upstream would limit. The reason "store" is that of
// a ledger in Redis that does not respond.
var limitReasons = []limits.Reason{
	limits.Closed, limits.Cooldown, limits.Concurrency, limits.Content, limits.Points, limits.CPU, limits.Primary, limits.ClientBudget,
	limits.Writes, limits.Queue, "store",
}

// fields maps each value of a request to the names of its field in logs of JSON lines. The first present name counts.
var fields = struct{ start, end, method, target, query, line, status, millis, seconds, bytes, client, etag []string }{
	start: []string{"start_time", "startedDateTime"}, end: []string{"time", "timestamp", "@timestamp", "ts", "msec", "time_iso8601"},
	method: []string{"method", "request_method"}, target: []string{"path", "url", "uri", "request_uri"}, query: []string{"query", "query_string", "args"},
	line: []string{"request"}, status: []string{"status", "status_code", "response_code"},
	millis: []string{"duration_ms", "duration"}, seconds: []string{"request_time"},
	bytes: []string{"bytes", "bytes_sent", "body_bytes_sent"}, client: []string{"client", "user", "remote_user"}, etag: []string{"etag", "sent_http_etag"},
}

// object is a JSON object whose values are read as texts.
type object map[string]json.RawMessage

// text returns the value of the first present field, and the name of that field. An empty text and "-" count as absent.
func (o object) text(names []string) (value, name string) {
	for _, name := range names {
		raw, ok := o[name]
		if !ok {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw) // a number
		}
		if text != "" && text != "-" && text != "null" {
			return text, name
		}
	}
	return "", ""
}

// credentialForm matches names of clients that may be credentials. These are values with a scheme, pairs of a name and a
// password, texts with a known prefix, and JWTs. Proxies log the name of a Basic pair, which can be a token.
var credentialForm = regexp.MustCompile(`(?i)^(bearer|basic|token|remoteauth)\s|^[^:/]*:[^:/]*$|(gh[a-z]_|github_pat_|weir_|\btok-)|eyJ[\w-]{8}`)

// minSecret is the length of the shortest word with digits that may be a credential without a known prefix.
const minSecret = 20

// clientLabel returns the name of a client for a report. A name that may be a credential is replaced by a hash, so that the
// report shows no credential and still distinguishes clients.
func clientLabel(name string) string {
	secret := credentialForm.MatchString(name)
	for word := range strings.FieldsFuncSeq(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		secret = secret || len(word) >= minSecret && strings.ContainsAny(word, "0123456789")
	}
	if !secret {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "credential " + hex.EncodeToString(sum[:4])
}

// parseJSONLine parses a line of an access log of another proxy.
func parseJSONLine(line []byte) (Request, error) {
	var o object
	if err := json.Unmarshal(line, &o); err != nil {
		return Request{}, jsonError(err)
	}
	r := Request{Bytes: -1}
	r.Method, _ = o.text(fields.method)
	target, _ := o.text(fields.target)
	if request, _ := o.text(fields.line); request != "" {
		method, rest, _ := strings.Cut(request, " ")
		requested, _, _ := strings.Cut(rest, " ")
		r.Method, target = cmp.Or(r.Method, method), cmp.Or(target, requested)
	}
	if query, _ := o.text(fields.query); query != "" && target != "" && !strings.Contains(target, "?") {
		target += "?" + strings.TrimPrefix(query, "?")
	}
	switch {
	case r.Method == "":
		return r, missing("method", strings.Join(fields.method, ", ")+", or a request line as request")
	case target == "":
		return r, missing("path", strings.Join(fields.target, ", ")+", or a request line as request")
	}
	client, _ := o.text(fields.client)
	r.Client = clientLabel(client)
	r.ETag, _ = o.text(fields.etag)
	var err error
	if r.URL, err = parseTarget(target); err != nil {
		return r, err
	}
	if value, name := o.text(fields.status); value == "" {
		return r, missing("status", strings.Join(fields.status, " or "))
	} else if r.Status, err = strconv.Atoi(value); err != nil || r.Status < 100 || r.Status > 599 {
		return r, invalid(name, value, "a status from 100 to 599")
	}
	if value, name := o.text(fields.bytes); value != "" {
		if r.Bytes, err = parseNumber(value); err != nil {
			return r, invalid(name, value, "a number of bytes")
		}
	}
	if value, name := o.text(fields.millis); value != "" {
		if r.Latency, err = parseDuration(value, time.Millisecond); err != nil {
			return r, invalid(name, value, `milliseconds, or a duration such as "120ms"`)
		}
	} else if value, name := o.text(fields.seconds); value != "" {
		if r.Latency, err = parseDuration(value, time.Second); err != nil {
			return r, invalid(name, value, "seconds")
		}
	}
	value, name := o.text(fields.start)
	if value == "" {
		if value, name = o.text(fields.end); value == "" {
			return r, missing("time", strings.Join(append(fields.end, fields.start...), ", "))
		}
	}
	at, err := parseTime(value)
	if err != nil {
		return r, invalid(name, value, "RFC 3339 or Unix seconds")
	}
	if r.Start = at; !slices.Contains(fields.start, name) {
		r.Start = at.Add(-r.Latency)
	}
	return r, nil
}

// maxTime bounds times, so that calculations with them do not overflow.
const maxTime = 1 << 33 // seconds, the year 2242

// parseTime parses a time in RFC 3339, or in seconds or milliseconds since 1970.
func parseTime(text string) (time.Time, error) {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		if n > maxTime {
			n /= 1000
		}
		if !(0 < n && n <= maxTime) {
			return time.Time{}, errors.New("out of range")
		}
		seconds, fraction := math.Modf(n)
		return time.Unix(int64(seconds), int64(fraction*1e6)*1000).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err == nil && (t.Unix() < 0 || t.Unix() > maxTime) {
		err = errors.New("out of range")
	}
	return t.UTC(), err
}

// maxLatency bounds response times. Longer times count as maxLatency.
const maxLatency = time.Hour

// parseDuration parses a number of units, or a duration with a unit.
func parseDuration(text string, unit time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if n, notNumber := strconv.ParseFloat(text, 64); notNumber == nil {
		d, err = time.Duration(min(n*float64(unit), float64(maxLatency))), nil
		if math.IsNaN(n) {
			err = errors.New("not a number")
		}
	}
	if err == nil && d < 0 {
		err = errors.New("out of range")
	}
	return min(d, maxLatency), err
}

// harEntry is the part of an entry of a HAR 1.2 file that a replay needs.
type harEntry struct {
	Started time.Time `json:"startedDateTime"`
	Time    float64   `json:"time"` // milliseconds
	Request struct {
		Method string `json:"method"`
		URL    string `json:"url"`
	} `json:"request"`
	Response struct {
		Status  int `json:"status"`
		Headers []struct{ Name, Value string }
		Content struct {
			Size *int64 `json:"size"`
		} `json:"content"`
	} `json:"response"`
}

// harRequests returns the requests of a HAR file. Only one entry is in memory at a time.
func (l *Log) harRequests(in io.Reader) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		d := json.NewDecoder(in)
		if err := findEntries(d); err != nil {
			yield(Request{}, fmt.Errorf("read log %s: no array log.entries; save the file as HAR 1.2: %w", l.Name, err))
			return
		}
		for number := 1; d.More(); number++ {
			var e harEntry
			if err := d.Decode(&e); err != nil { // the rest of the file cannot be read
				yield(Request{}, fmt.Errorf("read log %s: entry %d: %w; save the file again as HAR 1.2", l.Name, number, err))
				return
			}
			r, err := e.request()
			switch {
			case err != nil && l.SkipInvalid:
				l.Skipped++
				continue
			case err != nil:
				yield(Request{}, fmt.Errorf("read log %s: entry %d: %w", l.Name, number, err))
				return
			}
			if !yield(r, nil) {
				return
			}
		}
		if _, err := d.Token(); err != nil {
			yield(Request{}, fmt.Errorf("read log %s: the file ends inside log.entries; save it again: %w", l.Name, err))
		}
	}
}

// findEntries reads until the first element of log.entries.
func findEntries(d *json.Decoder) error {
	for _, name := range []string{"log", "entries"} {
		if err := expect(d, '{'); err != nil {
			return err
		}
		for {
			t, err := d.Token()
			if err != nil {
				return err
			}
			if t == json.Delim('}') {
				return fmt.Errorf("no member %q", name)
			}
			if t == name {
				break
			}
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return err
			}
		}
	}
	return expect(d, '[')
}

// expect reads a token, and returns an error if it is not the wanted one.
func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("found %v instead of %v", t, want)
	}
	return err
}

func (e *harEntry) request() (Request, error) {
	r := Request{Start: e.Started.UTC(), Method: e.Request.Method, Status: e.Response.Status, Bytes: -1}
	switch {
	case e.Started.Unix() <= 0 || e.Started.Unix() > maxTime:
		return r, missing("startedDateTime", "the start in RFC 3339")
	case r.Method == "":
		return r, missing("request.method", "the method of the request")
	case e.Request.URL == "":
		return r, missing("request.url", "the URL of the request")
	case r.Status != 0 && (r.Status < 100 || r.Status > 599):
		return r, invalid("response.status", strconv.Itoa(r.Status), "a status from 100 to 599, or 0 without a response")
	}
	if e.Time > 0 && e.Time <= float64(maxLatency/time.Millisecond) {
		r.Latency = time.Duration(e.Time * float64(time.Millisecond))
	}
	if size := e.Response.Content.Size; size != nil && *size >= 0 {
		r.Bytes = *size
	}
	for _, h := range e.Response.Headers {
		if strings.EqualFold(h.Name, "etag") {
			r.ETag = h.Value
		}
	}
	var err error
	r.URL, err = parseTarget(e.Request.URL)
	return r, err
}

func missing(field, remedy string) error { return fmt.Errorf("no field %q; write %s", field, remedy) }

// maxQuoted bounds a value of the log in an error.
const maxQuoted = 80

func invalid(field, value, remedy string) error {
	return fmt.Errorf("field %q: %q is invalid; write %s", field, value[:min(len(value), maxQuoted)], remedy)
}

func jsonError(err error) error {
	return fmt.Errorf("%w; weir replay reads JSON with one object for each request (jsonl), the log of weir serve (weir) and HAR files (har)", err)
}

// parseTarget parses a path with a query, or a URL.
func parseTarget(target string) (*url.URL, error) {
	u, err := url.ParseRequestURI(target)
	if err != nil || u.Opaque != "" || u.Host == "" && !strings.HasPrefix(u.Path, "/") {
		return nil, invalid("path", target, "a path that begins with a slash, or a URL")
	}
	u.Path = cmp.Or(u.Path, "/")
	return &url.URL{Host: u.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}, nil
}
