package cache

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
)

var (
	contentRange = regexp.MustCompile(`^bytes (\d{1,9})-(\d{1,9})/(\d{1,9})$`)
	byteRange    = regexp.MustCompile(`^bytes=(\d{0,9})-(\d{0,9})$`)
)

// Part returns the part of a stored 206 that a value of Range selects (RFC 9110 section 14.1.2), as
// another 206. If the entry does not contain the whole range, or for several ranges, Part returns nil.
func (e *Entry) Part(selected string) *Entry {
	stored, wanted := contentRange.FindStringSubmatch(e.Header.Get("Content-Range")), byteRange.FindStringSubmatch(selected)
	if stored == nil || wanted == nil {
		return nil
	}
	number := func(digits string) int { n, _ := strconv.Atoi(digits); return n } // zero for no digits
	first, last, size := number(stored[1]), number(stored[2]), number(stored[3])
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
	part.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first+begin, first+end-1, size))
	return &part
}
