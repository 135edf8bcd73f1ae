package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// use sends a request of a client. Of 20 requests in an hour, the job may use 10.
func (o *redisGateway) use(client string, used int, reset time.Time) {
	o.Helper()
	caller := policy.Caller{Account: "robot", Kind: policy.User, Client: client, Clients: []policy.ClientBudget{
		{Client: "job", Share: 1, Limit: 0.5}, {Client: "person", Share: 1, Limit: 1},
	}}
	p, err := o.limiter.Acquire(o.Context(), limits.Claim{Operation: "user/get", Resource: policy.Core, Points: 1}, caller, time.Now().Add(5*time.Second))
	if err != nil {
		o.Fatal(err)
	}
	_, err = o.limiter.Settle(o.Context(), *p, limits.Outcome{
		Sent: true, Answered: true, Ended: true, Rate: limits.Rate{Resource: policy.Core, Limit: 20, Used: used, Reset: reset, Date: time.Now()},
	})
	if err != nil {
		o.Fatal(err)
	}
}

func TestOneReplicaLogsASoftLimitAndAllSendIt(t *testing.T) {
	socket := testservers.Redis(t)
	gateways := []*redisGateway{startOnRedis(t, socket, ""), startOnRedis(t, socket, "")}
	var watchers []*history.Watcher
	for _, g := range gateways {
		watcher, err := g.history.Watch(history.WatchOptions{Event: "soft_limit"})
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Close()
		watchers = append(watchers, watcher)
	}
	reset := time.Now().Add(50 * time.Minute).Truncate(time.Second)
	for i := range 10 {
		gateways[i%2].use("job", i+1, reset)
	}
	want := []string{"100", "50", "80"}
	for i, watcher := range watchers {
		var got []string
		testservers.Eventually(t, "the events", func(context.Context) bool {
			select {
			case e := <-watcher.Events():
				got = append(got, e.Data.(history.SoftLimit).Threshold)
			default:
			}
			return len(got) == len(want)
		})
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("gateway %d sent %q", i, got)
		}
	}
	var text string
	for _, g := range gateways {
		w := httptest.NewRecorder()
		g.telemetry.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		text += w.Body.String() + g.log.String()
	}
	for _, threshold := range want {
		for _, line := range []string{
			`msg="soft limit reached" account=robot client=job resource=core threshold=` + threshold + " used=",
			`weir_client_soft_limits_total{weir_account="robot",weir_client="job",weir_resource="core",weir_threshold="` + threshold + `"} 1`,
		} {
			if n := strings.Count(text, line); n != 1 {
				t.Errorf("%d lines %s", n, line)
			}
		}
	}
}
