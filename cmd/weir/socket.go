package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	osuser "os/user"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// listenForClients opens the listener for clients: a TCP address or a Unix socket.
func listenForClients(c *config.Config) (net.Listener, error) {
	path := c.SocketPath()
	if path == "" {
		return net.Listen("tcp", c.Listen)
	}
	if err := removeUnusedSocket(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	mode, err := strconv.ParseUint(c.Socket.Mode, 8, 32)
	if err == nil {
		err = os.Chmod(path, fs.FileMode(mode))
	}
	if err == nil && c.Socket.Owner != "" {
		err = changeOwner(path, c.Socket.Owner)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return l, nil
}

// removeUnusedSocket removes a socket that a process left behind.
func removeUnusedSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it, or choose another path", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if c, err := dialer.Dial("unix", path); err == nil {
		return errors.Join(fmt.Errorf("another process listens on %s", path), c.Close())
	}
	return os.Remove(path)
}

// changeOwner sets the owner of a file to USER, USER:GROUP or :GROUP.
func changeOwner(path, owner string) error {
	name, group, _ := strings.Cut(owner, ":")
	uid, gid := -1, -1 // keeps the owner
	if name != "" {
		id := name
		if u, err := osuser.Lookup(name); err == nil {
			id = u.Uid
		}
		n, err := strconv.Atoi(id)
		if err != nil {
			return fmt.Errorf("owner: there is no user %q", name)
		}
		uid = n
	}
	if group != "" {
		id := group
		if g, err := osuser.LookupGroup(group); err == nil {
			id = g.Gid
		}
		n, err := strconv.Atoi(id)
		if err != nil {
			return fmt.Errorf("owner: there is no group %q", group)
		}
		gid = n
	}
	return os.Lchown(path, uid, gid)
}
