package contentcoding

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

func TestSelect(t *testing.T) {
	for _, c := range []struct {
		name, want string
		accept     []string
	}{
		{"no field", "", nil},
		{"empty field", "", []string{""}},
		{"gzip", "gzip", []string{"gzip"}},
		{"zstd", "zstd", []string{"zstd"}},
		{"zstd at equal weights", "zstd", []string{"gzip, deflate, br, zstd"}},
		{"several lines", "zstd", []string{"gzip", "zstd"}},
		{"weights", "gzip", []string{"zstd;q=0.5, gzip;q=0.8"}},
		{"three decimals and spaces", "gzip", []string{"zstd ; q=0.001 ,gzip\t; Q=0.002"}},
		{"case", "gzip", []string{"GZip"}},
		{"alias", "gzip", []string{"x-gzip"}},
		{"excluded", "", []string{"gzip;q=0, zstd;q=0.000"}},
		{"unsupported", "", []string{"br, deflate"}},
		{"identity only", "", []string{"identity"}},
		{"identity preferred", "", []string{"gzip;q=0.5, identity"}},
		{"identity at equal weight", "gzip", []string{"gzip, identity"}},
		{"identity excluded", "gzip", []string{"gzip;q=0.1, identity;q=0"}},
		{"identity excluded, unsupported coding", "", []string{"br, identity;q=0"}},
		{"any", "zstd", []string{"*"}},
		{"any other", "gzip", []string{"zstd;q=0.1, *;q=0.5"}},
		{"any excluded", "gzip", []string{"gzip, *;q=0"}},
		{"invalid weights", "", []string{"gzip;q=2, zstd;q=NaN, x-gzip;q=-1"}},
		{"no number", "", []string{"gzip;q=high"}},
		{"other parameter", "", []string{"gzip;level=9"}},
		{"empty members", "gzip", []string{", ,gzip,;"}},
	} {
		got := ""
		if coding := Select(c.accept); coding != nil {
			got = coding.Name
		}
		testservers.Equal(t, c.name, got, c.want)
	}
}

func TestCompressible(t *testing.T) {
	testservers.EqualEach(t, Compressible, map[string]bool{
		"application/json; charset=utf-8": true, "application/vnd.github+json": true, "application/atom+xml": true, "Text/HTML": true,
		"image/svg+xml": true, "application/xml": true, "text/plain": true, "application/x-ndjson": true,
		"image/png": false, "application/octet-stream": false, "application/zip": false, "application/gzip": false, "": false, "json": false,
	})
}

// decode decodes with other libraries, or with the options of a strict client.
func decode(t interface{ Fatal(...any) }, coding string, r io.Reader) []byte {
	var decoded io.Reader
	var err error
	if coding == "gzip" {
		decoded, err = gzip.NewReader(r)
	} else {
		decoded, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20)) // RFC 9659
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(decoded)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestDecodedBodyEqualsTheBody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "pattern")
		body := bytes.Repeat(pattern, rapid.IntRange(0, 2000).Draw(t, "repetitions"))
		c := rapid.SampledFrom(codings).Draw(t, "coding")
		if !bytes.Equal(decode(t, c.Name, bytes.NewReader(c.Encode(body))), body) {
			t.Fatal("Encode changed the body")
		}
		source := io.Reader(bytes.NewReader(body))
		source = rapid.SampledFrom([]io.Reader{source, iotest.HalfReader(source), iotest.DataErrReader(source)}).Draw(t, "source")
		r := c.Reader(io.NopCloser(source))
		if !bytes.Equal(decode(t, c.Name, r), body) {
			t.Fatal("Reader changed the body")
		}
		_ = r.Close()
		if start := body[:min(len(body), 100)]; !bytes.Equal(Decode(c.Name, c.Encode(body), 100), start) {
			t.Fatal("Decode returned another start")
		}
	})
}

// Data that the source has returned can be decoded before the source returns more data.
func TestReaderDoesNotHoldDataBack(t *testing.T) {
	for _, c := range codings {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // reports a Read that blocks
				source, upstream := io.Pipe()
				r := c.Reader(source)
				go func() { _, _ = io.WriteString(upstream, "first") }()
				start := make([]byte, 1<<10)
				n := 0
				for !bytes.Equal(Decode(c.Name, start[:n], 5), []byte("first")) {
					more, err := r.Read(start[n:])
					testservers.NoError(t, err)
					n += more
				}
				_ = r.Close()
			})
		})
	}
}

func TestErrorOfTheBodyIsReturned(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range codings {
		r := c.Reader(io.NopCloser(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))))
		got, err := io.ReadAll(r)
		testservers.FailIf(t, !errors.Is(err, broken), "%s: error %v, want %v", c.Name, err, broken)
		testservers.Equal(t, c.Name+": the body before the error", string(Decode(c.Name, got, 10)), "half")
		_ = r.Close()
	}
}

func TestUnsupportedCodingIsNotDecoded(t *testing.T) {
	for _, coding := range []string{"", "br", "identity"} {
		testservers.Equal(t, coding, string(Decode(coding, []byte("start"), 10)), "start")
	}
	testservers.Equal(t, "invalid", Decode("gzip", []byte("not gzip"), 10), nil)
}
