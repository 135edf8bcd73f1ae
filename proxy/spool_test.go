package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/contentcoding"
)

// largeBody is a body that is too large for the cache.
type largeBody struct {
	chunked, compressible bool
	size                  int
	broken                atomic.Bool // after half of the body
	bytes                 []byte
}

func newLargeBody(size int, chunked, compressible bool) *largeBody {
	b := &largeBody{size: size, chunked: chunked, compressible: compressible}
	if compressible {
		for n := 0; len(b.bytes) < size; n++ {
			b.bytes = fmt.Appendf(b.bytes, `{"sha":"6dcb09b5b57875f334f61aebed695e2e4193db5e","number":%d},`, n)
		}
		b.bytes = b.bytes[:size]
		return b
	}
	b.bytes = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b.bytes)
	return b
}

func (b *largeBody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setFields(w, "Cache-Control: private, max-age=60", `Etag: "one"`, "Content-Type: application/octet-stream")
	if r.Header.Get("If-None-Match") != "" {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if b.compressible {
		w.Header().Set("Content-Type", "application/json")
	}
	if !b.chunked {
		w.Header().Set("Content-Length", strconv.Itoa(b.size))
	}
	time.Sleep(time.Second)
	_, _ = w.Write(b.bytes[:b.size/2])
	_ = http.NewResponseController(w).Flush()
	time.Sleep(time.Second)
	if b.broken.Load() {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(b.bytes[b.size/2:])
}

// isWhole reports whether a client gets the complete body. The client reads at most the given number of bytes.
func (w *world) isWhole(b *largeBody, client *http.Client, url string, most int64, fields ...string) (whole bool, err error) {
	resp, err := client.Do(w.newRequest(w.Context(), http.MethodGet, url+watchers, http.NoBody, append(fields, bearer("a"))...))
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	body := io.Reader(resp.Body)
	if coding := resp.Header.Get("Content-Encoding"); coding != "" {
		if body, _, err = contentcoding.NewReader(coding, resp.Body); err != nil {
			return false, err
		}
	}
	sum := crc32.NewIEEE()
	n, err := io.Copy(sum, io.LimitReader(body, most))
	if resp.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(resp.Status))
	}
	return int(n) == b.size && sum.Sum32() == crc32.ChecksumIEEE(b.bytes), err
}

// maxHeap measures the heap until the returned function is called, which returns the largest growth.
func maxHeap() func() uint64 {
	read := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	percent := debug.SetGCPercent(25) // garbage does not count
	runtime.GC()
	before, most := read(), uint64(0)
	stop, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() {
		for {
			most = max(most, read())
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() uint64 {
		close(stop)
		done.Wait()
		debug.SetGCPercent(percent)
		return most - min(most, before)
	}
}

// The clients of a call share a large body. Later clients get a body that gzip makes small enough for the cache.
func TestClientsShareALargeBody(t *testing.T) {
	for _, c := range []struct {
		protocol              string
		chunked, compressible bool
		accept                string
	}{
		{http1, false, false, "gzip"},
		{http2, true, false, "identity"},
		{http1, true, true, "gzip"},
		{http2, false, true, "gzip"},
		{http1, false, true, "identity"},
		{http2, true, true, "br"},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			b := newLargeBody(20<<20, c.chunked, c.compressible)
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, b.ServeHTTP)
				client, url := w.client, "http://gateway.test"
				if c.protocol == http2 {
					client, url = w.http2Client(), "https://gateway.test"
					client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 4 << 20}
				}
				for round, clients := range []int{50, 10} {
					grown := maxHeap()
					together(clients, func(i int) {
						time.Sleep(time.Duration(i) * 40 * time.Millisecond)
						whole, err := w.isWhole(b, client, url, 1<<30, accepting(c.accept)...)
						failIf(t, !whole || err != nil, "client %d got another body: %v", i, err)
					})
					synctest.Wait()
					n := grown()
					t.Logf("the heap has grown by %d KiB", n>>10)
					failIf(t, n > 40<<20, "the heap has grown by %d bytes", n)
					w.want("requests upstream", w.upstreamSaw(), map[bool]int{true: 1, false: round + 1}[c.compressible])
				}
				w.want("bytes in files", w.gateway.Background.files.Used(), int64(0))
				w.want("bytes in memory", w.gateway.Background.buffers.Used(), int64(0))
				w.want("permits in flight", w.inFlight(), 0)
			})
			left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*"))
			failIf(t, len(left) > 0, "files %q", left)
		})
	}
}

// A packed response has the fields and conditions of any stored response. Ranges are forwarded.
func TestLargeTextIsStored(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const hit, size = "weir; hit; ttl=50", 2 * maxEntry
	b := newLargeBody(size, false, true)
	setup(b.ServeHTTP).run(t, func(w *world) {
		get := func(method, cache string, fields ...string) got {
			r := w.do(method, sbom, nil, append(fields, bearer("a"))...)
			w.want("Cache-Status", r.Header.Get("Cache-Status"), cache)
			return r
		}
		w.want("body", w.decoded(get(http.MethodGet, "weir; fwd=uri-miss; fwd-status=200")) == string(b.bytes), true)
		time.Sleep(8 * time.Second)
		for accept, coding := range map[string]string{"identity": "", "gzip": "gzip", "zstd": "", "gzip, zstd": "gzip"} {
			r := get(http.MethodGet, hit, "Accept-Encoding: "+accept)
			w.want(accept+": coding", r.Header.Get("Content-Encoding"), coding)
			w.want(accept+": body", w.decoded(r) == string(b.bytes), true)
			head := get(http.MethodHead, hit, "Accept-Encoding: "+accept)
			w.wantFields(accept+": HEAD", head.Header, "Content-Length: "+r.Header.Get("Content-Length"), "Content-Encoding: "+r.Header.Get("Content-Encoding"))
			w.want(accept+": 304", get(http.MethodGet, hit, "Accept-Encoding: "+accept, `If-None-Match: "one"`).StatusCode, 304)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
		get(http.MethodGet, "weir; fwd=bypass; fwd-status=200", "Range: bytes=2-9")
		time.Sleep(time.Minute)
		w.want("body", get(http.MethodGet, "weir; fwd=stale; fwd-status=304; stored; ttl=60").body == string(b.bytes), true)
	})
}

// A client that reads nothing, and clients that leave, do not stop the others. A slow client gets the body later.
func TestFollowersOfALargeBodyAreIndependent(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, leaderLeaves := range []bool{true, false} {
		b := newLargeBody(maxEntry+1<<20, false, false) // virtual time needs the length (pausing)
		setup(b.ServeHTTP).sub(t, fmt.Sprint("leader leaves: ", leaderLeaves), func(w *world) {
			leader := w.dial()
			_, _ = io.WriteString(leader, "GET "+watchers+" HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\n\r\n")
			synctest.Wait()
			slow := w.dial()
			_, _ = io.WriteString(slow, "GET "+watchers+" HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer a\r\n\r\n")
			synctest.Wait()
			if leaderLeaves {
				time.AfterFunc(1500*time.Millisecond, func() { _ = leader.Close() })
			}
			together(4, func(i int) {
				if i == 0 { // leaves
					_, _ = w.isWhole(b, w.client, "http://gateway.test", 1<<20)
					return
				}
				whole, err := w.isWhole(b, w.client, "http://gateway.test", 1<<30)
				failIf(w, !whole || err != nil, "client %d got another body: %v", i, err)
			})
			time.Sleep(10 * time.Second)
			w.want("permits in flight", w.inFlight(), 0)
			for _, c := range []io.ReadWriteCloser{leader, slow} {
				if c == leader && leaderLeaves {
					continue
				}
				r, err := http.ReadResponse(bufio.NewReader(c), nil)
				noError(w, err)
				n, err := io.Copy(io.Discard, r.Body)
				failIf(w, int(n) != b.size || err != nil, "a slow client got %d bytes: %v", n, err)
				_ = c.Close()
			}
			synctest.Wait()
			w.want("requests upstream", w.upstreamSaw(), 1)
			w.want("bytes in files", w.gateway.Background.files.Used(), int64(0))
		})
	}
}

// Each client sees that a body is broken, whether the upstream or the temporary file ends early. Without a file, or without room
// for the body, each client has its own request. So have all clients after a body of an unknown length that had no room.
func TestNoClientGetsAPartOfALargeBodyAsWhole(t *testing.T) {
	const size = maxEntry + 1<<20
	for _, c := range []struct {
		name         string
		chunked      bool
		files, taken int64
		directory    string
		broken       bool
		whole, sent  int
		later        int // complete bodies of four later clients
	}{
		{name: "broken", broken: true, files: maxSpooled, sent: 1},
		{name: "broken, chunked", chunked: true, broken: true, files: maxSpooled, sent: 1},
		{name: "room for one half", files: 2*size - 1, whole: 4, sent: 4, later: 4},
		{name: "full disk", files: maxEntry + 512<<10, whole: 4, sent: 4, later: 4},
		{name: "full disk, chunked", chunked: true, files: maxEntry + 512<<10, whole: 1, sent: 1, later: 4},
		{name: "no room, chunked", chunked: true, files: 16 << 10, taken: 15<<10 + 1, whole: 4, sent: 4, later: 4},
		{name: "no directory", directory: "/missing", files: maxSpooled, whole: 4, sent: 4, later: 4},
		{name: "no directory, chunked", chunked: true, directory: "/missing", files: maxSpooled, whole: 4, sent: 4, later: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir()+c.directory)
			b := newLargeBody(map[bool]int{true: 2 * size, false: size}[c.broken], c.chunked, false) // it breaks in its middle
			b.broken.Store(c.broken)
			setup(b.ServeHTTP).run(t, func(w *world) {
				files := &w.gateway.Background.files
				files.Limit = c.files
				w.want("room for the taken bytes", files.Reserve(c.taken), true)
				complete := func() int {
					var whole atomic.Int32
					together(4, func(i int) {
						time.Sleep(time.Duration(i) * time.Millisecond)
						ok, err := w.isWhole(b, w.client, "http://gateway.test", 1<<30)
						failIf(w, ok == (err != nil), "client %d: whole is %v, and the error is %v", i, ok, err)
						if ok {
							whole.Add(1)
						}
					})
					synctest.Wait()
					return int(whole.Load())
				}
				w.want("complete bodies", complete(), c.whole)
				w.want("requests upstream", w.upstreamSaw(), c.sent)
				w.want("complete bodies later", complete(), c.later)
				w.want("bytes in files", files.Used(), c.taken)
				w.want("bytes in memory", w.gateway.Background.buffers.Used(), int64(0))
			})
		})
	}
}

// Cache-Status says stored only if the response is stored, and later clients of an unknown length share a call again.
func TestLargeBodiesAreNotAnnouncedAsStored(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, chunked := range []bool{true, false} {
		b := newLargeBody(maxEntry+1, chunked, false)
		setup(b.ServeHTTP).sub(t, fmt.Sprint("chunked: ", chunked), func(w *world) {
			for n := range 3 {
				r := w.get(watchers, bearer("a"))
				w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200")
				w.want("requests upstream", w.upstreamSaw(), n+1)
			}
			together(4, func(int) { _, _ = w.isWhole(b, w.client, "http://gateway.test", 1<<30) })
			w.want("requests upstream", w.upstreamSaw(), 4)
		})
	}
}
