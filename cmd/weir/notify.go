package main

import (
	"errors"
	"net"
	"os"
)

// notify sends a state to systemd, as sd_notify(3) does. It does nothing if systemd did not start the process with
// Type=notify or Type=notify-reload.
func notify(state string) error {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"}) // a leading @ is an abstract address
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return errors.Join(err, conn.Close())
}

// notifyReload runs a reload: systemd considers the unit as reloading until the reload has ended.
func notifyReload(reload func()) error {
	began := notify("RELOADING=1\nMONOTONIC_USEC=" + monotonicMicroseconds())
	reload()
	return errors.Join(began, notify("READY=1"))
}
