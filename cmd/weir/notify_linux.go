package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// monotonicMicroseconds returns the time of CLOCK_MONOTONIC, by which systemd matches a reload with its signal.
func monotonicMicroseconds() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "0"
	}
	return strconv.FormatInt(now.Nano()/1000, 10)
}
