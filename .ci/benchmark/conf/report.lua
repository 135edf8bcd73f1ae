-- With an argument, each request has its own URL, which begins with the argument.
init = function(args)
  if args[1] then
    local count = 0
    request = function()
      count = count + 1
      return wrk.format(nil, wrk.path .. "?page=" .. args[1] .. count)
    end
  end
end

-- Prints the figures of one wrk run as one line. Times are in microseconds.
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    "figures requests=%d time=%d p50=%d p99=%d failed=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.timeout + e.status))
end
