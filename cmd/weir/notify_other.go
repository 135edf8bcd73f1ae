//go:build !linux

package main

// monotonicMicroseconds returns zero: only Linux has systemd.
func monotonicMicroseconds() string { return "0" }
