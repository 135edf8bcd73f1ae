//go:build unix

package main

import "syscall"

// descriptors is how many files and connections the process may have open; 0 where that is
// not known, or not bounded.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<24 {
		return 0
	}
	return int(limit.Cur)
}
