package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
)

// Cells of a row; those between the name and the reset are numbers.
const (
	nameCell = iota
	usedCell
	leftCell
	heldCell
	resetCell
	barCell
	cells
)

// row is a line of the table: what stands below an account for one budget.
type row [cells]string

// table is the accounts by name, and below each its budgets, the tightest
// first. It is a function of its arguments, and all of it is printable.
func (v *budgetView) table(accounts []history.Account, now time.Time) []string {
	if len(accounts) == 0 {
		return []string{"no account has sent anything yet"}
	}
	accounts = slices.Clone(accounts)
	slices.SortFunc(accounts, func(a, b history.Account) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	head := row{"BUDGET", "USED", "LEFT", "HELD", "RESETS"}
	blocks, width := make([][]row, len(accounts)), widths(head)
	for i, account := range accounts {
		blocks[i] = v.rows(account, now)
		for _, r := range blocks[i] {
			width = wider(width, widths(r))
		}
	}
	lines := []string{head.line(width)}
	for i, account := range accounts {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, heading(account, now))
		for _, r := range blocks[i] {
			lines = append(lines, r.line(width))
		}
		if len(blocks[i]) == 0 {
			lines = append(lines, "  nothing used")
		}
	}
	return lines
}

// heading is what is said of the whole account.
func heading(a history.Account, now time.Time) string {
	s := fmt.Sprintf("%s (%s): %d of %d in flight", printable(a.Name), printable(string(a.Kind)), a.InUse, a.Concurrent)
	if left := a.BlockedUntil.Sub(now); !a.BlockedUntil.IsZero() && left > 0 {
		s += "; cool-down ends in " + inWords(left)
	}
	if a.Waiting > 0 {
		s += fmt.Sprintf("; %d waiting", a.Waiting)
	}
	return s
}

// rows are the budgets that somebody has touched, or all.
func (v *budgetView) rows(a history.Account, now time.Time) []row {
	budgets := slices.DeleteFunc(slices.Clone(a.Budgets), func(b limits.Budget) bool { return !v.all && b.Used == 0 && b.Held == 0 })
	slices.SortFunc(budgets, func(a, b limits.Budget) int {
		return cmp.Or(cmp.Compare(slack(a), slack(b)), cmp.Compare(a.Resource, b.Resource))
	})
	rows := make([]row, len(budgets))
	for i, b := range budgets {
		amount := strconv.Itoa
		if strings.HasPrefix(b.Resource, "cpu") {
			amount = milliseconds
		}
		rows[i] = row{"  " + printable(b.Resource), amount(b.Used) + "/" + amount(b.Limit), amount(b.Remaining), "", "-", ""}
		if b.Held != 0 {
			rows[i][heldCell] = amount(b.Held)
		}
		if !b.Reset.IsZero() {
			rows[i][resetCell] = "now"
		}
		if left := b.Reset.Sub(now); left > 0 {
			rows[i][resetCell] = "in " + inWords(left)
		}
		if f, ok := a.Forecasts[b.Resource]; ok && f.Early && f.Ends.After(now) {
			rows[i][resetCell] += "; at this rate nothing is left in " + inWords(f.Ends.Sub(now))
		}
		if v.terminal {
			rows[i][barCell] = bar(b)
		}
	}
	return rows
}

// slack is the part of a budget that may still be spent: what is held is
// spoken for.
func slack(b limits.Budget) float64 {
	if b.Limit <= 0 {
		return 0
	}
	return float64(b.Remaining-b.Held) / float64(b.Limit)
}

// milliseconds writes them as seconds.
func milliseconds(n int) string {
	return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64) + "s"
}

// barWidth is how many cells a bar has.
const barWidth = 20

// bar draws what is used, what is held and what is left. It is full when
// nothing is left, and not before.
func bar(b limits.Budget) string {
	part := func(n int) int {
		if b.Limit <= 0 {
			return barWidth
		}
		return int(min(max(0, float64(n)/float64(b.Limit)), 1) * barWidth)
	}
	used := part(b.Used)
	held := max(0, part(b.Used+b.Held)-used)
	return strings.Repeat("█", used) + strings.Repeat("▒", held) + strings.Repeat("░", barWidth-used-held)
}

func widths(r row) (w [cells]int) {
	for i, cell := range r {
		w[i] = utf8.RuneCountInString(cell)
	}
	return w
}

func wider(a, b [cells]int) [cells]int {
	for i := range a {
		a[i] = max(a[i], b[i])
	}
	return a
}

// line sets numbers flush right and the rest flush left.
func (r row) line(width [cells]int) string {
	var b strings.Builder
	for i, cell := range r {
		blank := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
		if i == nameCell || i >= resetCell {
			b.WriteString(cell + blank + "  ")
		} else {
			b.WriteString(blank + cell + "  ")
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// inWords is a time as somebody would say it: its two largest units, with the
// last begun second for a whole one.
func inWords(d time.Duration) string {
	left := int64(d / time.Second)
	if d%time.Second > 0 {
		left++
	}
	var parts []string
	for _, unit := range []struct {
		seconds int64
		name    string
	}{{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}} {
		n := left / unit.seconds
		left %= unit.seconds
		if n > 0 {
			parts = append(parts, strconv.FormatInt(n, 10)+unit.name)
		} else if len(parts) > 0 {
			break
		}
		if len(parts) == 2 {
			break
		}
	}
	return cmp.Or(strings.Join(parts, " "), "0s")
}

// maxName bounds what one name takes of a line.
const maxName = 80

// printable is a name that does nothing to a terminal or to a log.
func printable(s string) string { return bounded(s, maxName) }

// bounded is a text that does nothing to a terminal or to a log: control and
// format characters left out, its length bounded.
func bounded(s string, most int) string {
	kept := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s))
	if len(kept) > most {
		kept = append(kept[:most-1], '…')
	}
	return cmp.Or(string(kept), "?")
}

// inert is JSON that does nothing to a terminal and means the same: the
// characters that might can stand in its texts only, where they are escaped.
func inert(text []byte) string {
	var b strings.Builder
	for _, r := range strings.TrimRight(string(text), "\r\n") {
		switch {
		case unicode.IsPrint(r), r == '\n', r == '\t':
			b.WriteRune(r)
		case r != '\r': // which stands between the values
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	return b.String() + "\n"
}
