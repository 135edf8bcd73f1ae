package cache

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
)

var (
	contentRange = regexp.MustCompile(`^bytes (\d{1,9})-(\d{1,9})/(\d{1,9})$`)
	byteRange    = regexp.MustCompile(`^bytes=(\d{0,9})-(\d{0,9})$`)
)

// bounds returns the first and the last byte of a stored 206, and the size of the complete response. ok is false for several
// ranges.
func (e *Entry) bounds() (first, last, size int, ok bool) {
	stored := contentRange.FindStringSubmatch(e.Header.Get("Content-Range"))
	if stored == nil {
		return 0, 0, 0, false
	}
	first, last, size = number(stored[1]), number(stored[2]), number(stored[3])
	return first, last, size, last < size
}

// number returns the value of at most nine digits, and zero for no digits.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

// IsWholePart reports whether a 206 has one range with all its bytes. If the Range of the request selected the last bytes, the
// part must end with the last byte. Upstreams exist whose Content-Range then counts one byte too many, as in the public suite.
func (e *Entry) IsWholePart(selected string) bool {
	first, last, size, ok := e.bounds()
	missing := last - first + 1 - len(e.Body)
	if wanted := byteRange.FindStringSubmatch(selected); wanted != nil && wanted[1] == "" {
		return ok && last == size-1 && (missing == 0 || missing == 1 && number(wanted[2]) == len(e.Body))
	}
	return ok && missing == 0
}

// Satisfiable returns the ranges of a Range field that a response can satisfy. Without the result, the last zero bytes
// ("-0") would be a part of any response (RFC 9110 section 14.1.2). The result is empty if no range remains.
func Satisfiable(selected string) string {
	if !strings.Contains(selected, "-0") {
		return selected
	}
	unit, list, _ := strings.Cut(selected, "=")
	var ranges []string
	for r := range strings.SplitSeq(list, ",") {
		if r = strings.TrimSpace(r); len(r) < 2 || r[0] != '-' || strings.Trim(r[1:], "0") != "" {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) == 0 {
		return ""
	}
	return unit + "=" + strings.Join(ranges, ",")
}

// Part returns the part of a stored 206 that a value of Range selects (RFC 9110 section 14.1.2), as
// another 206. If the entry does not contain the whole range, or for several ranges, Part returns nil.
func (e *Entry) Part(selected string) *Entry {
	first, last, size, ok := e.bounds()
	wanted := byteRange.FindStringSubmatch(selected)
	if !ok || wanted == nil {
		return nil
	}
	from, to := number(wanted[1]), number(wanted[2])
	begin, end := from-first, to-first+1
	if wanted[1] == "" { // the last bytes
		begin = len(e.Body) - to
	}
	if wanted[1] == "" || wanted[2] == "" || to >= size { // to the end of the complete response
		if last != size-1 {
			return nil
		}
		end = len(e.Body)
	}
	if begin < 0 || begin >= end || end > len(e.Body) {
		return nil
	}
	part := *e
	part.Body, part.Header = e.Body[begin:end], maps.Clone(e.Header)
	if len(part.Body) < len(e.Body) {
		maps.DeleteFunc(part.Header, func(name string, _ []string) bool { return IsContentDigest(name) })
	}
	part.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first+begin, first+end-1, size))
	return &part
}
