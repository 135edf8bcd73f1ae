package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ticksPerSecond is the unit of times in /proc (USER_HZ), the same on all that Go
// runs on.
const ticksPerSecond = 100

// spent is what /proc/PID/stat tells of a process.
type spent struct {
	pid, parent int
	ticks       int64 // of CPU, its own and in the kernel
}

// parseStat reads a /proc/PID/stat. The name of the program stands in it as it is, with
// blanks and parentheses of its own.
func parseStat(text string) (spent, error) {
	name := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[name+1:]) // from the third field on
	pid, _, _ := strings.Cut(text, " ")
	if len(fields) < 13 {
		return spent{}, fmt.Errorf("not a line of /proc/PID/stat: %q", text)
	}
	var numbers [4]int64
	for i, field := range []string{pid, fields[1], fields[11], fields[12]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return spent{}, fmt.Errorf("not a line of /proc/PID/stat: %q", text)
		}
		numbers[i] = n
	}
	return spent{pid: int(numbers[0]), parent: int(numbers[1]), ticks: numbers[2] + numbers[3]}, nil
}

// family sums what a process and its descendants have spent.
func family(all []spent, root int) (ticks int64) {
	for _, p := range all {
		switch {
		case p.pid == root:
			ticks += p.ticks
		case p.parent == root:
			ticks += family(all, p.pid)
		}
	}
	return ticks
}

// cpuSeconds is what a process and its descendants have spent so far.
func cpuSeconds(pid int) (float64, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var all []spent
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		p, err := parseStat(string(text))
		if err != nil {
			return 0, err
		}
		all = append(all, p)
	}
	return float64(family(all, pid)) / ticksPerSecond, nil
}

// parseRSS reads the resident memory from a /proc/PID/status, in bytes.
func parseRSS(text string) (int64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS: %w", fs.ErrNotExist)
}

// resident is how much memory a process has.
func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseRSS(string(text))
}

// catchesInterrupt reports whether a process has a handler for SIGINT by now.
func catchesInterrupt(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && parseCatches(string(text), syscall.SIGINT)
}

// parseCatches reads from a /proc/PID/status whether there is a handler for a signal.
func parseCatches(text string, signal syscall.Signal) bool {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && mask&(1<<(signal-1)) != 0
		}
	}
	return false
}
