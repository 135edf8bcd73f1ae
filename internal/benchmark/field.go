package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
)

// The servers, as the tables call them.
const (
	weir       = "Weir"
	weirRedis  = "Weir, Redis ledger"
	bareName   = "bare net/http handler"
	proxyName  = "bare ReverseProxy"
	proxyRedis = "ReverseProxy, a Redis call each"
	nginx      = "nginx"
	varnish    = "Varnish"
	haproxy    = "HAProxy"
)

// column is one thing that all are asked for.
type column struct {
	title       string
	path        string
	connections int
	conditional bool
	kept        bool // answered from the cache; else each request reaches the upstream
	// servers begin with the one that the others are compared with.
	servers []string
	// wanted is the ratio that Weir is to reach.
	wanted float64
}

// hits is the column from which more is told than it shows.
const hits = "Hit, 2 KB, 64 connections"

// columns are what is compared.
func columns() []column {
	caches := []string{bareName, weir, weirRedis, nginx, varnish, haproxy}
	memory := []string{proxyName, weir, nginx, varnish, haproxy}
	redis := []string{proxyRedis, weirRedis, proxyName}
	return []column{
		{title: hits, path: small, connections: 64, kept: true, servers: caches, wanted: 0.85},
		{title: "Conditional hit (304), 64 connections", path: small, connections: 64, kept: true, conditional: true, servers: caches, wanted: 0.85},
		{title: "Hit, 64 KB, 64 connections", path: large, connections: 64, kept: true, servers: caches, wanted: 0.9},
		{title: "Hit, 2 KB, 1 connection", path: small, connections: 1, kept: true, servers: caches},
		{title: "Pass-through, 2 KB, 64 connections", path: passing, connections: 64, servers: memory, wanted: 0.85},
		{title: "Pass-through, 2 KB, 1 connection", path: passing, connections: 1, servers: memory},
		{title: "Pass-through over Redis, 2 KB, 64 connections", path: passing, connections: 64, servers: redis, wanted: 0.9},
		{title: "Pass-through over Redis, 2 KB, 1 connection", path: passing, connections: 1, servers: redis},
	}
}

// token is whose the measured requests are.
const token = "Bearer account-0"

// field is who takes part.
type field struct {
	columns []column
	servers map[string]*child // by name; those that are not installed are missing
}

// openField starts all servers, and lets each answer everything once.
func (s *stage) openField(ctx context.Context) (*field, error) {
	f := &field{columns: s.columns, servers: map[string]*child{}}
	for name, store := range map[string]string{weir: "memory:", weirRedis: "redis://" + s.redis + "/0"} {
		c, _, err := s.startWeir(ctx, store)
		if err != nil {
			return nil, err
		}
		f.servers[name] = c
	}
	if err := s.openBare(ctx, f); err != nil {
		return nil, err
	}
	if err := s.openPeers(ctx, f); err != nil {
		return nil, err
	}
	for _, c := range f.columns {
		plain := c
		plain.conditional = false // a 304 would leave nothing to be kept
		for _, name := range c.servers {
			server := f.servers[name]
			if server == nil {
				continue
			}
			for _, question := range []column{plain, c} {
				if _, err := question.answered(ctx, server.address); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", c.title, name, err)
				}
			}
		}
	}
	return f, nil
}

// openBare starts the servers that Weir is compared with.
func (s *stage) openBare(ctx context.Context, f *field) error {
	answers := filepath.Join(s.dir, "answers.json")
	if err := s.take(ctx, f, answers); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		bareName:   {"bare", address, answers},
		proxyName:  {"reverseproxy", address, s.upstream},
		proxyRedis: {"reverseproxy-redis", address, s.upstream, s.redis},
	} {
		c, err := s.start(ctx, s.pinned(append([]string{s.self}, args...)), []string{"GOMAXPROCS=1"})
		if err != nil {
			return err
		}
		f.servers[name] = c
	}
	return nil
}

// take writes down hits of the gateway, field by field, for the bare handler to repeat.
func (s *stage) take(ctx context.Context, f *field, file string) error {
	var answers []answer
	for _, path := range []string{small, large} {
		whole := column{path: path, kept: true}
		if _, err := whole.answered(ctx, f.servers[weir].address); err != nil { // now it is kept
			return err
		}
		hit, err := whole.answered(ctx, f.servers[weir].address)
		if err != nil {
			return err
		}
		whole.conditional = true
		unmodified, err := whole.answered(ctx, f.servers[weir].address)
		if err != nil {
			return err
		}
		for _, fields := range []http.Header{hit.fields, unmodified.fields} {
			delete(fields, "Date") // every server of net/http writes it by itself
		}
		answers = append(answers, answer{Path: path, Body: hit.body, ETag: hit.fields.Get("Etag"), Fields: hit.fields, Unmodified: unmodified.fields})
	}
	text, err := json.Marshal(answers)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// openPeers starts those of the other programs that are installed.
func (s *stage) openPeers(ctx context.Context, f *field) error {
	for _, peer := range []struct{ name, program, file string }{
		{nginx, "nginx", "nginx.conf"}, {varnish, "varnishd", "varnish.vcl"}, {haproxy, "haproxy", "haproxy.cfg"},
	} {
		program, err := locate(peer.program)
		if err != nil {
			continue // the tables say so
		}
		at, err := freeAddress(ctx)
		if err != nil {
			return err
		}
		file, err := s.configure(peer.file, at, nil)
		if err != nil {
			return err
		}
		command := map[string][]string{
			nginx:   {program, "-c", file},
			varnish: {program, "-F", "-j", "none", "-a", at, "-f", file, "-n", filepath.Join(s.dir, "varnish"), "-s", "malloc,256m", "-p", "thread_pools=1"},
			haproxy: {program, "-db", "-f", file},
		}[peer.name]
		if f.servers[peer.name], err = s.startAt(ctx, at, s.pinned(command), nil); err != nil {
			return err
		}
	}
	return nil
}

// locate finds a program, also where only the system's own shells look.
func locate(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + program)
	}
	return path, err
}

// reply is an answer that was read to its end.
type reply struct {
	fields http.Header
	body   []byte
}

// size is how long the bodies of a column are.
func (c column) size() int {
	switch {
	case c.conditional:
		return 0
	case c.path == large:
		return largeSize
	}
	return smallSize
}

// answered asks a server once, and holds the answer against what the column is about.
func (c column) answered(ctx context.Context, at string) (reply, error) {
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	fields, status := map[string]string{"Authorization": token}, http.StatusOK
	if c.conditional {
		fields["If-None-Match"], status = etag, http.StatusNotModified
	}
	resp, err := get(ctx, &http.Client{Transport: transport}, "http://"+at+c.path, fields)
	if err != nil {
		return reply{}, err
	}
	body, err := io.ReadAll(resp.Body)
	if err := resp.Body.Close(); err != nil {
		return reply{}, err
	}
	switch {
	case err != nil:
		return reply{}, err
	case resp.StatusCode != status || len(body) != c.size():
		return reply{}, fmt.Errorf("answered %d with %d bytes, want %d with %d", resp.StatusCode, len(body), status, c.size())
	}
	return reply{fields: resp.Header, body: body}, nil
}

// load is what the column asks a server for.
func (c column) load(at, script string) load {
	l := load{url: "http://" + at + c.path, connections: c.connections, fields: []string{"Authorization: " + token}, script: script}
	if c.conditional {
		l.fields = append(l.fields, "If-None-Match: "+etag)
	}
	return l
}
