package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes, written with a unit: 512KiB, 256MiB, 2GiB, or
// plain bytes.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

func parseSize(text string) (Size, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.bytes {
			break
		}
		return Size(n * u.bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size: write a number and KiB, MiB or GiB", text)
}

// String writes the size with the largest unit that fits it exactly.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return "0B"
}

// MarshalYAML writes the size as [Size.String] does.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }
