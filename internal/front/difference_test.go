package front_test

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

// spokenIn are requests of all kinds, in which others are hidden.
func spokenIn() []string {
	evil, long := get("/held/evil"), strings.Repeat("y", 5000)
	return []string{
		get("/held/1"), get("/held/1"), get("/held/2?a=b"), get("/held/large"), get("/other"), get("/slow"), hello,
		get("/nothing"), get("/nothing/204"), get("/nothing/304"), get("/nothing/500"), get("/nothing/599"), get("/short"), get("/short/html"), get("/short/typed"), get("/short/encoded"), get("/short/pieces"), get("/long"), get("/flushed"),
		get("/trailers"), get("/trailers/forbidden"), get("/trailers/early"), get("/hints"), get("/less"), get("/more"), get("/closes"), get("/odd"), get("/panic"), get("/late-panic"), get("/large"), get("/body/304"), get("/twice"),
		get("/named/a") + get("/named/b"),
		"GET /held/e HTTP/1.1\r\nhost: h\r\nif-none-match: x\r\nX-A: 1\r\nX-A: 2\r\n\r\n", "HEAD /held/1 HTTP/1.1\r\nHost: h\r\n\r\n", "GET /held/%41 HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"GET /held/1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "GET /held/1 HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", "GET /held/1 HTTP/1.0\r\n\r\n",
		"GET /held/1 HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n", "GET /held/1 HTTP/1.1\r\nHost: h\r\n X: y\r\n\r\n", "GET /held/1 HTTP/1.1\r\nHost: h\r\nX: " + long + "\r\n\r\n",
		"POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil, "POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + long,
		"POST /some HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + long, "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + long,
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "POST /a HTTP/1.1\r\nHost: h\r\n\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 36\r\n\r\n" + evil, "POST /unread HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 36\r\n\r\n" + evil,
		"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil, "HEAD /a HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
		"POST /duplex HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil, "POST /panic HTTP/1.1\r\nHost: h\r\nContent-Length: 36\r\n\r\n" + evil,
	}
}

// various answers in all ways: late, never, without the body, with a part of it.
func various(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow":
		time.Sleep(time.Second)
	case "/panic", "/late-panic":
		if r.URL.Path == "/late-panic" {
			w.Header().Set("Content-Length", "5000")
			_, _ = io.WriteString(w, strings.Repeat("p", 3000))
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	case "/some":
		_, _ = io.ReadFull(r.Body, make([]byte, 10))
		w.WriteHeader(http.StatusUnauthorized)
		return
	case "/unread":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case "/duplex":
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusUnauthorized)
		_ = r.Body.Close()
		return
	}
	if how := ways[r.URL.Path]; how != nil {
		how(w, w.Header())
		return
	}
	answer(w, r)
}

// ways are how handlers answer beside telling all in advance.
var ways = map[string]func(w http.ResponseWriter, h http.Header){
	"/named/a":     func(w http.ResponseWriter, h http.Header) { h.Set("X-A", "1"); says("a")(w, h) },
	"/named/b":     func(w http.ResponseWriter, h http.Header) { h.Set("X-B", "1"); says("b")(w, h) },
	"/nothing":     func(http.ResponseWriter, http.Header) {},
	"/nothing/204": func(w http.ResponseWriter, h http.Header) { h.Set("Content-Length", "5"); w.WriteHeader(204) },
	"/nothing/304": func(w http.ResponseWriter, h http.Header) {
		h.Set("Content-Length", "5")
		h.Set("Content-Type", "text/plain")
		w.WriteHeader(304)
	},
	"/nothing/500":   func(w http.ResponseWriter, h http.Header) { h["Date"] = nil; w.WriteHeader(500) },
	"/nothing/599":   func(w http.ResponseWriter, _ http.Header) { w.WriteHeader(599) },
	"/short":         says("a", "", "b"),
	"/short/html":    says("<html>", "b"),
	"/short/typed":   func(w http.ResponseWriter, h http.Header) { h["Content-Type"] = nil; says("a")(w, h) },
	"/short/encoded": func(w http.ResponseWriter, h http.Header) { h.Set("Content-Encoding", "gzip"); says("a")(w, h) },
	"/short/pieces":  func(w http.ResponseWriter, h http.Header) { h.Set("Content-Length", "7"); says("<", "html> ")(w, h) },
	"/long":          says(strings.Repeat("l", 40_000), strings.Repeat("m", 3000)),
	"/large": func(w http.ResponseWriter, h http.Header) {
		h.Set("Content-Length", "60000")
		says(strings.Repeat("l", 30_000), strings.Repeat("m", 30_000))(w, h)
	},
	"/flushed": func(w http.ResponseWriter, h http.Header) {
		_ = http.NewResponseController(w).Flush()
		h.Set("X-Late", "not sent")
		says("a")(w, h)
		_ = http.NewResponseController(w).Flush()
		says("b")(w, h)
	},
	"/trailers": func(w http.ResponseWriter, h http.Header) {
		h.Add("Trailer", "x-b, X-A, Content-Length")
		says("a")(w, h)
		_ = http.NewResponseController(w).Flush()
		h.Set("X-A", "1")
		h["X-B"] = []string{"2", "3"}
		h.Set(http.TrailerPrefix+"X-C", "4")
	},
	"/trailers/forbidden": func(w http.ResponseWriter, h http.Header) {
		h.Set("Cache-Control", "private")
		h.Set("Trailer", "Cache-Control, If-Match, X-A")
		says("a")(w, h)
		_ = http.NewResponseController(w).Flush()
		for _, name := range []string{"Cache-Control", "If-Match", "X-A"} {
			h.Set(name, "late")
		}
	},
	"/trailers/early": func(w http.ResponseWriter, h http.Header) { h.Set(http.TrailerPrefix+"X-A", "1"); says("a")(w, h) },
	"/hints": func(w http.ResponseWriter, h http.Header) {
		h.Set("Link", "</a>")
		h.Set("Content-Length", "1")
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		w.WriteHeader(http.StatusEarlyHints)
		says("a")(w, h)
	},
	"/less":     func(w http.ResponseWriter, h http.Header) { h.Set("Content-Length", "5"); says("a")(w, h) },
	"/more":     func(w http.ResponseWriter, h http.Header) { h.Set("Content-Length", "1"); says("a", "b")(w, h) },
	"/closes":   func(w http.ResponseWriter, h http.Header) { h.Set("Connection", "close"); says("a")(w, h) },
	"/body/304": func(w http.ResponseWriter, h http.Header) { w.WriteHeader(304); says("a")(w, h) },
	"/twice": func(w http.ResponseWriter, h http.Header) {
		w.WriteHeader(201)
		h.Set("X-Late", "not sent")
		w.WriteHeader(202)
		says("a")(w, h)
	},
	"/odd": func(w http.ResponseWriter, h http.Header) {
		h["X Odd"] = []string{"a"}
		h["X-Lines"] = []string{"a\nb", "", " c "}
		h.Set("Connection", "x-other")
		says("a")(w, h)
	},
}

func says(parts ...string) func(http.ResponseWriter, http.Header) {
	return func(w http.ResponseWriter, _ http.Header) {
		for _, part := range parts {
			_, _ = io.WriteString(w, part)
		}
	}
}

// TestNobodySeesADifference sends the same requests, in the same pieces, to a server of
// net/http with a front and to one without. It leaves nothing behind.
func TestNobodySeesADifference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		all, cuts := "", []int{}
		for _, text := range rapid.SliceOfN(rapid.SampledFrom(spokenIn()), 1, 12).Draw(rt, "requests") {
			switch rapid.SampledFrom([]string{"alone", "alone", "alone", "in pieces", "with the one before"}).Draw(rt, "how") {
			case "alone":
				cuts = append(cuts, len(all))
			case "in pieces":
				cut := rapid.IntRange(0, len(text)).Draw(rt, "cut")
				cuts = append(cuts, len(all), len(all)+cut, len(all)+rapid.IntRange(cut, len(text)).Draw(rt, "again"))
			}
			all += text
		}
		if with, without := compared(t, all, cuts); with != without {
			rt.Fatalf("with a front\n%s\nwithout\n%s", with, without)
		}
	})
}

// TestNoWayToAnswerDiffers does it with each request for itself, between two others.
func TestNoWayToAnswerDiffers(t *testing.T) {
	first, behind := get("/first"), get("/behind")
	for _, text := range spokenIn() {
		name, _, _ := strings.Cut(text, " HTTP/")
		t.Run(name, func(t *testing.T) {
			if with, without := compared(t, first+text+behind, []int{len(first), len(first) + len(text)}); with != without {
				t.Fatalf("with a front\n%s\nwithout\n%s", with, without)
			}
		})
	}
}

// compared is what comes for a text, cut at some places, with a front and without.
func compared(t *testing.T, text string, cuts []int) (with, without string) {
	t.Helper()
	var got [2]string
	for i := range got {
		synctest.Test(t, func(t *testing.T) {
			h := house{handler: various}
			var l *testservers.PipeListener
			if i == 0 {
				l, _ = serve(t, &h)
			} else {
				l = testservers.ServePipe(t, "plain", &http.Server{Handler: &h, IdleTimeout: time.Minute, ReadHeaderTimeout: 10 * time.Second})
			}
			got[i] = joined(date.ReplaceAllString(spoken(t, l, text, cuts), ""))
		})
	}
	return got[0], got[1]
}

var date = regexp.MustCompile(`Date: .*\r\n`)

// joined makes one chunk of all that follow each other: a server may cut a body as it likes.
func joined(text string) string {
	before, behind, chunked := strings.Cut(text, "Transfer-Encoding: chunked\r\n")
	fields, rest, whole := strings.Cut("\r\n"+behind, "\r\n\r\n")
	if !chunked || !whole {
		return text
	}
	body := ""
	for {
		line, next, _ := strings.Cut(rest, "\r\n")
		size, err := strconv.ParseInt(line, 16, 32)
		if err != nil || size == 0 || len(next) < int(size)+2 {
			return before + "chunked" + fields + "\n" + body + "\n" + joined(rest)
		}
		body += next[:size]
		rest = next[size+2:]
	}
}

// spoken is all that comes on a connection to which a text is sent, cut at some places.
func spoken(t *testing.T, l *testservers.PipeListener, text string, cuts []int) string {
	t.Helper()
	c := dial(t, l)
	all := make(chan string)
	go func() {
		got, _ := io.ReadAll(c) // it ends when nothing more comes
		all <- string(got)
	}()
	from := 0
	for _, to := range append(cuts, len(text)) {
		_ = c.SetWriteDeadline(time.Now().Add(3 * time.Minute)) // nobody may read it
		if _, err := io.WriteString(c, text[from:to]); err != nil {
			break // it was told that it is wrong
		}
		synctest.Wait()
		from = to
	}
	got := <-all
	_ = c.Close()
	time.Sleep(time.Minute) // whoever still waits for something
	return got
}

// TestNobodyListensBehindTheEnd: net/http begins to listen whether a client leaves when it has
// read what is left of a body, even where it ends the connection next.
func TestNobodyListensBehindTheEnd(t *testing.T) {
	for name, text := range map[string]string{
		"what is expected is refused": "POST /unread HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhelloG",
		"the answer ends it":          "POST /unread HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhelloG",
		"a panic":                     "POST /panic HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello" + get("/b"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // which fails where somebody waits for ever
				h := house{handler: various}
				l, _ := serve(t, &h)
				spoken(t, l, text, nil)
			})
		})
	}
}

func TestNothingIsServedBehindABrokenAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		h := house{atOnce: func() { <-proceed }}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/held/1") + hello)
		_ = c.Close()
		close(proceed)
		synctest.Wait()
		h.wants(t, "front GET /held/1")
	})
}

// TestWhoLeavesBehindTwoRequests is not waited for either.
func TestWhoLeavesBehindTwoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		h := house{handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/waits" {
				<-r.Context().Done()
				close(left)
			}
			answer(w, r)
		}}
		l, _ := serve(t, &h)
		c := held(t, l, &h)
		c.send(get("/waits") + get("/b"))
		_ = c.Close()
		<-left
	})
}
