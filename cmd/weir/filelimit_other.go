//go:build !unix

package main

// fileLimit returns 0: the number of open files is not limited.
func fileLimit() int { return 0 }
