-- Prints the figures of one wrk run as one line. Times are in microseconds.
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    "figures requests=%d time=%d p50=%d p99=%d failed=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.timeout + e.status))
end
