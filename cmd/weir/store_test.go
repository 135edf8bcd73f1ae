package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// openFileStore opens a memory store with a file.
func openFileStore(t *testing.T, file string) *store {
	t.Helper()
	return must(tryFileStore(file))(t)
}

func tryFileStore(file string) (*store, error) {
	cfg := configure(nowhere, func(c *config.Config) { c.Store.URL = "memory:" + file })
	return openStore(cfg, "r", nil, slog.New(slog.DiscardHandler))
}

// spendOne completes one request of an account.
func spendOne(t *testing.T, s *store) {
	t.Helper()
	p := limits.Permit{Claim: limits.Claim{ID: 1, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}}
	if d, err := s.Admit(t.Context(), p.Claim); err != nil || !d.Granted {
		t.Fatal(d, err)
	}
	rate := limits.Rate{Limit: 5000, Used: 4000, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core}
	noError(t, s.Settle(t.Context(), p, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}))
}

func used(t *testing.T, s *store) int {
	t.Helper()
	b, _ := s.Budget(policy.Caller{Account: "a", Kind: policy.User}, policy.Core)
	return b.Used
}

func TestMemoryLedgerSurvivesRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	first := openFileStore(t, file)
	spendOne(t, first)
	noError(t, first.close())
	if list := must(os.ReadDir(filepath.Dir(file)))(t); len(list) != 2 {
		t.Errorf("want the ledger and the lock, without temporary files, got %v", list)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ledger file: %v, %v", info, err)
	}
	second := openFileStore(t, file)
	if used(t, second) != 4000 || string(second.hashKeys.Load().current) != string(first.hashKeys.Load().current) {
		t.Errorf("used %d, key %x, not %x", used(t, second), second.hashKeys.Load().current, first.hashKeys.Load().current)
	}
	if _, err := tryFileStore(file); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process opened the file: %v", err)
	}
	// If the second process crashes, the third process must not load the ledger of the first process.
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the loaded ledger file is not removed: %v", err)
	}
	noError(t, errors.Join(second.close(), os.Remove(file)))
	third := openFileStore(t, file)
	if used(t, third) != 0 || string(third.hashKeys.Load().current) == string(first.hashKeys.Load().current) {
		t.Errorf("used %d after a crash, want 0", used(t, third))
	}
}

func TestInvalidLedgerFileIsIgnored(t *testing.T) {
	for _, text := range []string{"", "x", "{}\n{}", `{"hash_key":"aGVsbG8="}` + "\n" + `{"version":99}`} {
		file := filepath.Join(t.TempDir(), "ledger")
		write(t, file, text)
		s := openFileStore(t, file)
		if used(t, s) != 0 {
			t.Errorf("the ledger file %q was used", text)
		}
		spendOne(t, s)
		noError(t, s.close())
		if used(t, openFileStore(t, file)) != 4000 {
			t.Errorf("the ledger after the invalid file %q was not written", text)
		}
	}
}

func TestUnwritableLedgerFileFailsAtStart(t *testing.T) {
	if _, err := tryFileStore(filepath.Join(t.TempDir(), "nowhere", "ledger")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
