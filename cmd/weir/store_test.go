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
func openFileStore(t *testing.T, file string) *ledgerFile {
	t.Helper()
	return must(tryFileStore(file))(t)
}

func tryFileStore(file string) (*ledgerFile, error) {
	cfg := configure(nowhere, func(c *config.Config) { c.Store.URL = "memory:" + file })
	s, _, err := openStore(cfg, "r", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return s.(*ledgerFile), nil
}

// spendOne completes one request of an account.
func spendOne(t *testing.T, s store) {
	t.Helper()
	p := limits.Permit{Claim: limits.Claim{ID: 1, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}}
	d := s.Admit(t.Context(), p.Claim)
	stopIf(t, !d.Granted, "%v", d)
	rate := policy.Rate{Limit: 5000, Used: 4000, Reset: time.Now().Add(time.Hour), Date: time.Now(), Resource: policy.Core}
	noError(t, s.Settle(t.Context(), p, limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: rate}))
}

func used(t *testing.T, s store) int {
	t.Helper()
	b, _ := s.Budget(policy.Caller{Account: "a", Kind: policy.User}, policy.Core)
	return b.Used
}

func TestMemoryLedgerSurvivesRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	first := openFileStore(t, file)
	spendOne(t, first)
	noError(t, first.Close())
	list := must(os.ReadDir(filepath.Dir(file)))(t)
	failIf(t, len(list) != 2, "want the ledger and the lock, without temporary files, got %v", list)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ledger file: %v, %v", info, err)
	}
	second := openFileStore(t, file)
	failIf(t, used(t, second) != 4000 || string(second.hashKey) != string(first.hashKey), "used %d, key %x, not %x", used(t, second), second.hashKey, first.hashKey)
	_, err := tryFileStore(file)
	failIf(t, err == nil || !strings.Contains(err.Error(), "another process"), "a second process opened the file: %v", err)
	noError(t, errors.Join(second.Close(), os.Remove(file)))
	third := openFileStore(t, file)
	failIf(t, used(t, third) != 0 || string(third.hashKey) == string(first.hashKey), "used %d without a file, want 0", used(t, third))
}

// A copy of the file is what the next process finds after SIGKILL.
func TestKilledProcessLosesNoSpending(t *testing.T) {
	file, copied := filepath.Join(t.TempDir(), "ledger"), filepath.Join(t.TempDir(), "ledger")
	first := openFileStore(t, file)
	spendOne(t, first)
	write(t, copied, string(must(os.ReadFile(file))(t))+`{"At":1`) // a line that was not complete
	second := openFileStore(t, copied)
	n := used(t, second)
	failIf(t, n < 4000 || n > 4200, "used %d after a kill, want 4000 and a few more", n)
	claim := limits.Claim{ID: 1, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
	if d := second.Admit(t.Context(), claim); d.Granted || d.Wait < 59*time.Second || d.Wait > time.Minute {
		t.Errorf("the points count not as spent for a minute: %+v", d)
	}
	claim.Account = "unused"
	d := second.Admit(t.Context(), claim)
	failIf(t, !d.Granted, "an account without requests: %+v", d)
	noError(t, errors.Join(first.Close(), second.Close()))
}

func TestInvalidLedgerFileIsKept(t *testing.T) {
	for _, text := range []string{"", "x", "{}\n{}", `{"hash_key":"aGVsbG8="}` + "\n" + `{"version":99}` + "\n"} {
		file := filepath.Join(t.TempDir(), "ledger")
		write(t, file, text)
		write(t, file+".new-1", "a file of an earlier version")
		noError(t, os.Mkdir(file+".new", 0o700)) // such as a full disk
		_, err := tryFileStore(file)
		failIf(t, err == nil || !strings.Contains(err.Error(), "write ledger"), "the new file cannot be written: %v", err)
		noError(t, os.Remove(file+".new"))
		s := openFileStore(t, file)
		failIf(t, used(t, s) != 0 || !strings.Contains(s.ColdStart(), "all points"), "the ledger file %q: used %d, %q", text, used(t, s), s.ColdStart())
		kept := must(filepath.Glob(file + ".corrupt-*"))(t)
		failIf(t, len(kept) != 1 || string(must(os.ReadFile(kept[0]))(t)) != text, "the invalid file %q is not kept: %q", text, kept)
		noError(t, s.Close())
		list := must(os.ReadDir(filepath.Dir(file)))(t)
		failIf(t, len(list) != 3, "want the ledger, the lock and the invalid file, got %v", list)
		again := openFileStore(t, file)
		creation := limits.Claim{ID: 1, Account: "a", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 5, CreatesContent: true}
		d := again.Admit(t.Context(), creation)
		failIf(t, d.Granted || again.ColdStart() != s.ColdStart(), "after one more restart: %+v, %q", d, again.ColdStart())
		noError(t, again.Close())
	}
}

// A symbolic link and its target are one file, which the ledger replaces at its place.
func TestLedgerFileMayBeASymbolicLink(t *testing.T) {
	for _, exists := range []bool{true, false} {
		file, link := filepath.Join(t.TempDir(), "ledger"), filepath.Join(t.TempDir(), "link")
		if exists {
			noError(t, openFileStore(t, file).Close())
		}
		noError(t, os.Symlink(file, link))
		s := openFileStore(t, link)
		if _, err := tryFileStore(file); err == nil || !strings.Contains(err.Error(), "in use by another process") {
			t.Errorf("two processes use one file: %v", err)
		}
		noError(t, s.Close())
		info := must(os.Lstat(link))(t)
		if _, err := os.Stat(file); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("the link has mode %v, and the file: %v", info.Mode(), err)
		}
	}
}

func TestUnusableLedgerFile(t *testing.T) {
	if _, err := tryFileStore(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder: %v", err)
	}
	file := filepath.Join(t.TempDir(), "ledger")
	s := openFileStore(t, file)
	noError(t, os.Mkdir(file+".new", 0o700)) // the new file cannot be written
	err := s.Close()
	failIf(t, err == nil || !strings.Contains(err.Error(), "save ledger"), "a ledger that cannot be saved: %v", err)
}

func TestUnwritableLedgerFileFailsAtStart(t *testing.T) {
	_, err := tryFileStore(filepath.Join(t.TempDir(), "nowhere", "ledger"))
	failIf(t, !errors.Is(err, fs.ErrNotExist), "error %v", err)
}
