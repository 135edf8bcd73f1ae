-- What wrk has measured, in one line that is easily read; times in microseconds.
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    "measured requests=%d bytes=%d time=%d p50=%d p99=%d connect=%d read=%d write=%d timeout=%d status=%d\n",
    summary.requests, summary.bytes, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.timeout, e.status))
end
