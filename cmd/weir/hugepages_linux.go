package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// sizeFile tells how large a huge page is, enabledFile whether the operator wants any.
	sizeFile    = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
	enabledFile = "/sys/kernel/mm/transparent_hugepage/enabled"
	// largestPage is of what size they are used: on some machines they have 512 MB.
	largestPage = 4 << 20
	// gatherEvery is how often memory is looked at while there is something to do, gatherFor for
	// how long; gatherLater when again where all is done, or the kernel had no huge page (to look
	// for one can take it long), and no memory has come since.
	gatherEvery = time.Second
	gatherFor   = 30 * time.Millisecond
	gatherLater = time.Minute
	// madvCollapse gathers what is in small pages into a huge one (madvise(2), Linux 6.1).
	madvCollapse = 25
	// present is set of a page in memory (proc_pid_pagemap(5)).
	present = 1 << 63
)

// gatherPages has the kernel put memory that is all in use into huge pages, until ctx ends.
// What a hit reads of 100,000 answers lies apart in 300 MB, and to find out where a small page
// is takes about as long as to read what it holds: without this a hit costs 1.12 times as much
// there (the median of 24 pairs), and no more with 1,000 answers. No memory is taken that was
// not in use: what has a hole stays as it is. Who has switched huge pages off ("never") has none.
func gatherPages(ctx context.Context) {
	p, err := openPages()
	if err != nil {
		return // there are none
	}
	defer func() { _ = p.pagemap.Close() }()
	again := time.NewTicker(gatherEvery)
	defer again.Stop()
	var done bool
	var then time.Time // when it was done, and what was resident
	var held uintptr
	for {
		if now := p.resident(); !done || now >= held+p.huge || time.Since(then) >= gatherLater {
			done, err = p.gather(time.Now().Add(gatherFor))
			done = done || err != nil // as of a moment in which no file can be opened
			then, held = time.Now(), now
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// memoryPages are the process's own.
type memoryPages struct {
	pagemap *os.File
	huge    uintptr // bytes of a huge page
	small   uintptr
	states  []byte  // of the small pages of a huge one
	next    uintptr // where the next look goes on
	// whole is how many huge ones could be had so far in this round, before in the last.
	whole, before int
}

func openPages() (*memoryPages, error) {
	enabled, err := os.ReadFile(enabledFile)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(sizeFile)
	if err != nil {
		return nil, err
	}
	huge, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return nil, err
	}
	if huge > largestPage || bytes.Contains(enabled, []byte("[never]")) {
		return nil, errors.New("huge pages are switched off, or too large")
	}
	if _, _, e := syscall.Syscall(syscall.SYS_MADVISE, 0, 0, madvCollapse); e != 0 {
		return nil, e // this kernel does not know it
	}
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	p := &memoryPages{pagemap: pagemap, huge: uintptr(huge), small: uintptr(os.Getpagesize())}
	p.states = make([]byte, p.huge/p.small*8)
	return p, nil
}

// gather goes on from where it was, for a round at most, until a time. It reports whether
// there is nothing more to do for now: a round found no more than the one before, or the kernel
// has no huge page to give. An error may be one of this moment.
func (p *memoryPages) gather(until time.Time) (done bool, err error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(maps)) {
		from, to, ok := ownMemory(line)
		if !ok {
			continue
		}
		for at := (max(from, p.next) + p.huge - 1) / p.huge * p.huge; at+p.huge <= to; at += p.huge {
			if time.Now().After(until) {
				p.next = at
				return false, nil
			}
			full, err := p.full(at)
			if err != nil {
				return false, err
			}
			if !full {
				continue
			}
			p.whole++
			switch _, _, e := syscall.Syscall(syscall.SYS_MADVISE, at, p.huge, madvCollapse); e {
			case 0, syscall.EINVAL: // somebody wants it in small ones
			default:
				p.next = at + p.huge
				return true, nil
			}
		}
	}
	done = p.whole <= p.before
	p.next, p.whole, p.before = 0, 0, p.whole
	return done, nil
}

// resident is how much of the process is in memory, in bytes (/proc/self/statm, proc_pid_statm(5)).
func (p *memoryPages) resident() uintptr {
	text, _ := os.ReadFile("/proc/self/statm") // what is not told has not changed
	var size, pages uintptr
	_, _ = fmt.Sscan(string(text), &size, &pages)
	return pages * p.small
}

// full reports whether all small pages of a huge one are in memory.
func (p *memoryPages) full(at uintptr) (bool, error) {
	if _, err := p.pagemap.ReadAt(p.states, int64(at/p.small*8)); err != nil {
		return false, err
	}
	for i := 0; i < len(p.states); i += 8 {
		if binary.NativeEndian.Uint64(p.states[i:])&present == 0 {
			return false, nil
		}
	}
	return true, nil
}

// ownMemory reads a line of /proc/self/maps: from where to where it is, and whether it is
// memory that is neither a file's nor shared, nor has a name but one that Go gives.
func ownMemory(line string) (from, to uintptr, ok bool) {
	words := strings.Fields(line)
	if len(words) < 5 || words[1] != "rw-p" || words[4] != "0" || len(words) > 5 && !strings.Contains(line, "[anon: Go:") {
		return 0, 0, false
	}
	first, last, _ := strings.Cut(words[0], "-")
	a, err1 := strconv.ParseUint(first, 16, 64)
	b, err2 := strconv.ParseUint(last, 16, 64)
	return uintptr(a), uintptr(b), err1 == nil && err2 == nil
}
