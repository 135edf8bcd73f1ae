package redisstore

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// recording is the data of two replicas of version 0.2, one of them with a key for the values.
const recording = "testdata/redis-0.2.txt"

const recordedSecret = "a secret of thirty-two characters"

// recordedKeys are the keys of the recorded entries.
var recordedKeys = struct{ plain, purged, sealed, fetched, failed, base cache.Key }{
	cache.NewKey("plain"), cache.NewKey("purged"), cache.NewKey("sealed"), cache.NewKey("fetched"), cache.NewKey("failed"), cache.NewKey("base"),
}

// recordedEntry returns the entry that the replicas stored.
func recordedEntry(since cache.Generation, body string, tags ...string) *cache.Entry {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	e := cache.NewEntry(cache.Response{
		Status: http.StatusOK, Header: http.Header{"Etag": {`"one"`}, "Content-Type": {"application/json"}}, Requested: at.Add(-time.Second), Answered: at,
	}, []byte(body), time.Hour)
	e.Since, e.Tags, e.BaseKey = since, tags, recordedKeys.base
	e.Vary = []cache.Field{{Name: "Accept-Language", Value: "de"}}
	return e
}

var recordedLease = cache.FetchLease{Owner: "r1", Sent: true, Next: time.Date(2026, 11, 26, 12, 0, 5, 0, time.UTC), Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

// TestStoredFormatIsThatOfTheRelease makes replicas store data of every kind, and compares its format with the recording.
func TestStoredFormatIsThatOfTheRelease(t *testing.T) {
	onRedis(t, func(f *fleet) {
		client := f.client()
		a, sealed := f.open(""), f.open(recordedSecret)
		ctx := t.Context()
		a.Put(ctx, recordedKeys.plain, recordedEntry(a.Generation(), `{"name":"plain"}`, "repo:o/r"))
		a.Put(ctx, recordedKeys.purged, recordedEntry(a.Generation(), `{"name":"purged"}`, "repo:o/gone"))
		a.Purge(ctx, "repo:o/gone")
		sealed.Put(ctx, recordedKeys.sealed, recordedEntry(sealed.Generation(), `{"name":"sealed"}`, "repo:o/r"))
		lease := recordedLease
		lease.Since, lease.Pending = a.Generation(), recordedEntry(a.Generation(), `{"name":"pending"}`)
		for _, key := range []cache.Key{recordedKeys.fetched, recordedKeys.failed} {
			ok, _ := a.shared.AcquireFetch(ctx, key, lease)
			failIf(t, !ok, "the lease was not acquired")
		}
		a.shared.ReleaseFetch(ctx, recordedKeys.failed, lease.Owner, true)
		testservers.CompareFormat(t, client, recording, func(value string) string {
			_, text, _ := strings.Cut(value, "\n") // the value of a lease
			return text
		})
	})
}

// TestReplicaContinuesWithTheDataOfTheRelease starts replicas on the recorded data.
func TestReplicaContinuesWithTheDataOfTheRelease(t *testing.T) {
	onRedis(t, func(f *fleet) {
		client := f.client()
		testservers.Replay(t, client, recording)
		for _, key := range []cache.Key{recordedKeys.fetched, recordedKeys.failed} { // their TTL is too short for a slow machine
			noError(t, client.Expire(t.Context(), leaseName(key), time.Minute).Err())
		}
		a, sealed := f.open(""), f.open(recordedSecret)
		ctx, german := t.Context(), accepts("de")
		for _, c := range []struct {
			name   string
			from   *replica
			key    cache.Key
			purged bool
		}{{"plain", a, recordedKeys.plain, false}, {"purged", a, recordedKeys.purged, true}, {"sealed", sealed, recordedKeys.sealed, false}} {
			e, purged := c.from.Lookup(ctx, c.key, german)
			if e == nil {
				t.Errorf("%s: the entry is not found", c.name)
				continue
			}
			want := recordedEntry(e.Since, `{"name":"`+c.name+`"}`)
			parts := func(e *cache.Entry) []any {
				return []any{e.Status, e.Header, string(e.Body), e.Vary, e.Requested, e.Answered, e.BaseKey, e.Staleness(e.Answered)}
			}
			diff := cmp.Diff(parts(want), parts(e))
			failIf(t, diff != "" || purged != c.purged, "%s: purged %v, want %v; entry (-want +got):\n%s", c.name, purged, c.purged, diff)
		}
		if _, others := a.Candidates(ctx, page, recordedKeys.base); len(others) != 1 || others[0].BaseKey != recordedKeys.base { // of the newest two, one is sealed
			t.Errorf("%d candidates, want the readable one", len(others))
		}
		a.Purge(ctx, "repo:o/r")
		_, purged := a.Lookup(ctx, recordedKeys.plain, german)
		failIf(t, !purged, "a purge does not make the recorded entry stale")

		ok, other := a.shared.AcquireFetch(ctx, recordedKeys.fetched, cache.FetchLease{Owner: "r3"})
		stopIf(t, ok || other == nil || other.Pending == nil || string(other.Pending.Body) != `{"name":"pending"}`, "lease of the recorded replica: acquired %v, lease %+v", ok, other)
		want := recordedLease
		want.Owner, want.Since, want.Pending = other.Owner, other.Since, other.Pending
		failIf(t, *other != want, "lease of the recorded replica: got %+v, want %+v", *other, want)
		if ok, other := a.shared.AcquireFetch(ctx, recordedKeys.failed, cache.FetchLease{Owner: "r3"}); ok || other == nil || !other.Failed {
			t.Errorf("failed fetch of the recorded replica: acquired %v, lease %+v", ok, other)
		}
	})
}
