package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestWhatIsInUseIsGathered: memory that is written is in huge pages afterwards, and what is
// not stays away.
func TestWhatIsInUseIsGathered(t *testing.T) {
	p, err := openPages()
	if err != nil {
		enabled, _ := os.ReadFile(enabledFile)
		if len(enabled) > 0 && !bytes.Contains(enabled, []byte("[never]")) {
			t.Errorf("huge pages are enabled (%s), and not used: %v", enabled, err)
		}
		return
	}
	defer func() { _ = p.pagemap.Close() }()
	const size = 64 << 20
	written := bytes.Repeat([]byte{1}, size)
	sparse, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(sparse) }()
	for at := uintptr(0); at < size; at += p.huge {
		sparse[at] = 1
		if err := syscall.Madvise(sparse[at+p.small:at+p.huge], syscall.MADV_DONTNEED); err != nil { // where huge pages come by themselves
			t.Fatal(err)
		}
	}
	gather := func(from []byte) (done bool) {
		p.next = uintptr(unsafe.Pointer(&from[0]))
		done, err := p.gather(time.Now().Add(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	done := gather(written)
	found, got := p.whole+p.before, memoryIs(t, "AnonHugePages")
	if found == 0 || !done && got < size/2 { // done says that the kernel has had no more
		t.Errorf("of %d bytes %d are in huge pages; %d were found", size, got, found)
	}
	runtime.KeepAlive(written)
	gather(sparse)
	from := uintptr(unsafe.Pointer(&sparse[0]))
	for at := (from + p.huge - 1) / p.huge * p.huge; at+p.huge <= from+size; at += p.huge {
		if full, err := p.full(at); err != nil || full {
			t.Fatalf("what nobody has written is in memory: %v; %v", full, err)
		}
	}
}

// memoryIs tells a figure of the process's memory, in bytes.
func memoryIs(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "\n"+name+":")
	var kilobytes int
	if _, err := fmt.Sscan(line, &kilobytes); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return kilobytes << 10
}

func TestOwnMemory(t *testing.T) {
	for line, ours := range map[string]bool{
		"c000000000-c000400000 rw-p 00000000 00:00 0 ":                                    true,
		"c000000000-c000400000 rw-p 00000000 00:00 0                 [anon: Go: heap]":    true,
		"c000400000-c004000000 ---p 00000000 00:00 0 ":                                    false,
		"5565d000-5567e000 rw-p 00000000 00:00 0                     [heap]":              false,
		"7ffc1b000-7ffc3c000 rw-p 00000000 00:00 0                   [stack]":             false,
		"00a41000-00a55000 rw-p 00641000 08:01 1234                  /usr/local/bin/weir": false,
		"7f0000000000-7f0000200000 rw-s 00000000 00:01 77            /dev/zero (deleted)": false,
		"7f0000000000-7f0000200000 rw-p 00000000 00:01 77            /dev/zero (deleted)": false,
		"no line": false, "": false,
	} {
		from, to, ok := ownMemory(line)
		first, _, _ := strings.Cut(line, "-")
		if want, _ := strconv.ParseUint(first, 16, 64); ok != ours || ok && (from != uintptr(want) || to <= from) {
			t.Errorf("%q: %x to %x, %v", line, from, to, ok)
		}
	}
}
