//go:build unix

package main

import "syscall"

// fileLimit returns the number of file descriptors that the process may open, or 0 if it is
// unknown or unlimited.
func fileLimit() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<24 {
		return 0
	}
	return int(limit.Cur)
}
