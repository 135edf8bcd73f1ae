// Package durations formats durations for people, in the notation that the configuration reads.
package durations

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

type unit struct {
	length time.Duration
	name   string
}

var units = []unit{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}

// Text formats three digits of a duration below a minute, as in 4.21ms, and the two largest units of a longer duration,
// as in 12m30s or 51h4m.
func Text(d time.Duration) string {
	if d < 0 {
		return "-" + Text(d.Abs())
	}
	precision := time.Nanosecond
	for precision < time.Second && d/precision >= 1000 {
		precision *= 10
	}
	if rounded := d.Round(precision); rounded < time.Minute {
		return rounded.String()
	}
	d = d.Round(time.Second)
	i := slices.IndexFunc(units, func(u unit) bool { return d >= u.length })
	large, small := units[i], units[i+1] // of a duration of at least a minute
	text := fmt.Sprintf("%d%s", d/large.length, large.name)
	if rest := d % large.length / small.length; rest > 0 {
		text += fmt.Sprintf("%d%s", rest, small.name)
	}
	return text
}

// Left formats the time until an event: whole seconds, rounded up, so that it shows 0s only when the event is due.
func Left(d time.Duration) string {
	if rest := d % time.Second; rest > 0 {
		d += time.Second - rest
	}
	return Text(d)
}

// Seconds formats an amount of time, such as CPU time, that a reader compares with others: 61.5s of 60s.
func Seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s" }
