package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// listenForClients opens the listener for clients: a TCP address or a Unix socket.
func listenForClients(c *config.Config) (net.Listener, error) {
	path := c.SocketPath()
	if path == "" {
		return listenTCP("listen", c.Listen)
	}
	if err := removeUnusedSocket(path); err != nil {
		return nil, fmt.Errorf("listen: %w%s", err, socketRemedy(err))
	}
	mode, err := strconv.ParseUint(c.Socket.Mode, 8, 32)
	if err != nil {
		return nil, fmt.Errorf("socket.mode: %w", err)
	}
	l, err := listenUnix(path, fs.FileMode(mode), c.Socket.Owner)
	if err != nil {
		return nil, fmt.Errorf("listen: %w%s", err, socketRemedy(err))
	}
	return l, nil
}

// socketRemedy returns what to do about a folder that is missing or not writable, or an empty text.
func socketRemedy(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "; create the folder, or choose another path"
	case errors.Is(err, fs.ErrPermission):
		return "; let the user of weir write to the folder"
	}
	return ""
}

// listenTCP opens a TCP listener. An error names the key or the flag of the address, and a remedy.
func listenTCP(key, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	remedy := "use an address of this machine, as in 127.0.0.1:8080 or :8080"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		remedy = "another program listens there; stop it, or choose another port"
	case errors.Is(err, syscall.EACCES):
		remedy = "the port needs a privilege (CAP_NET_BIND_SERVICE); choose a port above 1023"
	}
	return nil, fmt.Errorf("%s: %w; %s", key, err, remedy)
}

// listenUnix opens a Unix socket that has its mode and its owner before any other user can connect: the socket is created in
// a directory of this process, and then moved to its path.
func listenUnix(path string, mode fs.FileMode, owner string) (net.Listener, error) {
	private, err := os.MkdirTemp(filepath.Dir(path), ".w")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	created := filepath.Join(private, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: created, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove the former path
	if err = os.Chmod(created, mode); err == nil && owner != "" {
		err = changeOwner(created, owner)
	}
	if err == nil {
		err = os.Rename(created, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return &unixListener{l, path}, nil
}

// unixListener is a listener whose socket was moved to path.
type unixListener struct {
	*net.UnixListener
	path string
}

// Addr returns the path by which clients connect.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close also removes the socket.
func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if err == nil { // otherwise the listener was closed before
		err = os.Remove(l.path)
	}
	return err
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
