package credential

import (
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// recording is the data of a replica of version 0.2.
const recording = "testdata/redis-0.2.txt"

// recordedToken is the stored token. It expires after all runs of the test.
var recordedToken = AppToken{Value: "recorded-token", Expires: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}

// TestStoredFormatIsThatOfTheRelease stores a token and a lease, and compares their format with the recording.
func TestStoredFormatIsThatOfTheRelease(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: testservers.Redis(t)}
	s, err := NewRedisTokens(f.client(), []byte(sealKey))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Lease(t.Context(), "stored", "r1", 15*time.Second); !ok || err != nil {
		t.Fatalf("lease: %v, %v", ok, err)
	}
	if err := s.Return(t.Context(), "stored", "r1", recordedToken); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Lease(t.Context(), "requested", "r1", 15*time.Second); !ok || err != nil {
		t.Fatalf("lease: %v, %v", ok, err)
	}
	testservers.CompareFormat(t, f.client(), recording, nil)
}

// TestReplicaContinuesWithTheDataOfTheRelease uses the recorded token and lease.
func TestReplicaContinuesWithTheDataOfTheRelease(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: testservers.Redis(t)}
	testservers.Replay(t, f.client(), recording)
	s, err := NewRedisTokens(f.client(), []byte(sealKey))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load(t.Context(), "stored"); err != nil || got != recordedToken {
		t.Errorf("token %+v, %v; want the recorded token", got, err)
	}
	if ok, err := s.Lease(t.Context(), "requested", "r2", time.Second); ok || err != nil {
		t.Errorf("the recorded replica requests this token, but the lease was acquired: %v", err)
	}
}
