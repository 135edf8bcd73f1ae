// Package redisledger implements [limits.Ledger] in Redis, so that replicas share the limits of an account. Lua scripts
// apply the rules of package limits in Redis.
//
// Each account is one hash, so one script can decide on the whole account, also in a cluster. All fields of an account
// expire and are lost together. Values are cmsgpack maps with named fields, unless the table names another type. Times
// are microseconds since 1970.
//
//	weir:account:2:{TAG}  hash of one account. TAG is a hash of the name. 2 is the format version.
//	                      TTL: the longest window and two hours, renewed by writes.
//	  n                   kind and name, as text
//	  m                   times, number of concurrency slots in use, cool-down (account.lua, load)
//	  w:RESOURCE          primary window: its length and limit, units in use, observations (account.lua, window)
//	  l:BUDGET:SCOPE      sliding log: its window, sums and newest entry (account.lua, log)
//	  e:BUDGET:SCOPE      older entries of the log: a list of {at, cost}
//	  x:REPLICA:ID        permit (account.lua, lease)
//	  x:REPLICA:ID+       earlier copies of the permit's request, which the transport sent
//	  x:~REPLICA~KIND     offline lease of a replica for one kind of claims (leaseKey in offline.go, heartbeat.lua)
//	  r:REPLICA           number of writes of a replica, as text (restore.go)
//	  a                   the r fields an hour ago, to find idle replicas: {at, writes}
//	weir:{weir}:replicas  sorted set of replicas by the time of their last heartbeat. TTL: 5 minutes.
//	weir:{weir}:epoch     hash: run_id of the Redis process, and the time of its first registration. TTL: a day.
//	                      A change means that Redis may have lost writes.
//	weir:{weir}:key       secret from which replicas derive account names, in hexadecimal. TTL: 30 days.
//	weir:{weir}:accounts  sorted set of "KIND NAME" by the second of the last use. TTL: two hours.
//
// Invariants: Each script is one round trip and decides on all budgets of an account at once. A script reads the clock
// of Redis once. Every key has a TTL. A script that runs twice changes nothing the second time, because every change
// names a permit. A refused claim writes nothing, unless it starts the relearning of an account. Redis gets no
// credentials. A replica remembers its recent writes, and repeats the writes that Redis has lost (restore.go).
//
// A replica holds quota in two ways: an open permit for each request (permits.go), and offline leases for the time
// without Redis (offline.go).
//
// Start with [Ledger.Admit], then read batch.go, batch.lua and permits.go, and [Ledger.Settle].
package redisledger
