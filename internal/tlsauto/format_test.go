package tlsauto

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// recording is the data of a replica of version 0.2, whose values are sealed with secret.
const recording = "testdata/redis-0.2.txt"

const (
	recordedKey       = "certificates/ca/weir.test/weir.test.key"
	recordedChallenge = "acme/ca/challenge_tokens/weir.test.json"
)

// TestStoredFormatIsThatOfTheRelease stores values and a lock, and compares their format with the recording.
func TestStoredFormatIsThatOfTheRelease(t *testing.T) {
	s, client := openRedis(t, onServer(t), secret)
	for _, key := range []string{recordedKey, recordedChallenge} {
		noError(t, s.Store(t.Context(), key, []byte("text of "+key)))
	}
	if ok, err := s.TryLock(t.Context(), "order"); !ok || err != nil {
		t.Fatalf("lock: %v, %v", ok, err)
	}
	testservers.CompareFormat(t, client, recording, nil)
	err := s.Unlock(t.Context(), "order")
	failIf(t, err != nil, "%v", err)
}

// TestReplicaContinuesWithTheDataOfTheRelease reads the recorded values and respects the recorded lock.
func TestReplicaContinuesWithTheDataOfTheRelease(t *testing.T) {
	s, client := openRedis(t, onServer(t), secret)
	testservers.Replay(t, client, recording)
	if ok, err := s.TryLock(t.Context(), "order"); ok || err != nil {
		t.Errorf("the recorded replica holds this lock, but it was acquired: %v", err)
	}
	for _, key := range []string{recordedKey, recordedChallenge} {
		if text, err := s.Load(t.Context(), key); err != nil || string(text) != "text of "+key {
			t.Errorf("%s: %q, %v", key, text, err)
		}
		// The expiry in the index is that of the recording, which has passed.
		later := redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: key}
		changed, err := client.ZAddXX(t.Context(), keysKey, later).Result()
		failIf(t, err != nil || changed != 0, "%v %v", changed, err)
	}
	keys, err := s.List(t.Context(), "certificates", true)
	failIf(t, err != nil || !slices.Contains(keys, recordedKey), "listed %q, %v; want %s", keys, err, recordedKey)
}
