// Package redisledger implements [limits.Ledger] in Redis, so that replicas share the limits of an account.
//
// There is one idea: a lease. For each budget of an account, a replica has a number of tokens that no other replica may
// use. A token that the replica spends stays in its lease, and the replica can spend it again when it has returned. Redis
// stores only the leases, and never grants more tokens than the limit. Each replica decides with the rules of package
// limits ([limits.Part]) about its own requests.
//
//	           claim, if the lease grows and its tokens fit under the limit
//	        ┌────────────────────────────────────────────────────────────┐
//	        │                                                            ▼
//	free in Redis ◄─────────────── spare ◄──────────────────┐      held by a permit
//	        ▲      a heartbeat: free ÷ (replicas + 1)       │            │ response
//	        │                                               │            ▼
//	        └────── round trip: unless needed again ── returned ◄────── spent
//	                                                          one window later
//
// Without Redis, a claim uses returned and spare tokens of the lease, so a replica continues with the quota that it used
// last. 30 seconds after the last round trip only the spare tokens remain, and after five minutes nothing. One window
// after each of these times, Redis gives the tokens of a silent replica to the others.
//
// An idle account rests (account.idle): its replica has returned all leases with one call, and makes no further call before
// the next request. Each server of a cluster is a shard (shard.go), and the loss of a shard delays only the accounts that it stores.
//
// Each account is one hash, so one script can decide on the whole account, also in a cluster. All fields of an account
// expire and are lost together. Values are cmsgpack maps with named fields, unless the table names another type. Times
// are microseconds since 1970 on the clock of Redis, without its steps (steady.lua).
//
//	weir:account:3:{TAG}  hash of one account. TAG is a hash of the name. 3 is the format version.
//	                      TTL: the longest window and a day, renewed by writes.
//	  n                   kind and name, as text
//	  m                   cool-down, end of the relearning time, process of the last write, account into which it was merged
//	  w:RESOURCE          reports about the primary window of a resource, and its last limit
//	  t:BUDGET            sums of the leases of a budget: tokens, spent and held. Also the clients that wait, and the pace.
//	  l:REPLICA:BUDGET    lease of a replica. BUDGET is slots, window:RESOURCE, points:OPERATION, ... (limits.Need).
//	  r:REPLICA           number and time of the last saved call of a replica
//	  l:REPLICA#N:BUDGET  spent tokens that a replica left when the account became idle or the replica stopped. r:REPLICA#N
//	                      is their time. They end by themselves, or when the replica declares everything again.
//	weir:{weir}:replicas  sorted set of replicas by the time of their last heartbeat. TTL: 5 minutes.
//	weir:{weir}:epoch     hash: run_id of the Redis process, and the time of its first registration. TTL: a day.
//	                      A change means that Redis may have lost writes.
//	weir:{weir}:key       secret from which replicas derive account names, in hexadecimal. TTL: 30 days.
//	weir:{weir}:accounts  sorted set of "KIND NAME" by the second of the last use. TTL: two hours.
//	weir:{weir}:resources hash of learned resources. TTL: two hours.
//	weir:{weir}:aliases   sorted set of accounts with several names. TTL: a day.
//	weir:{weir}:names     sorted set of names of accounts in configurations, by the second of the last renewal. TTL: 25 hours.
//	weir:{weir}:once:NAME empty value that marks a name as used (Once). TTL: until the end that the caller gives.
//
// Gateways for another API than the public one append its name to the names of accounts, and to all keys except epoch and key.
//
// Invariants: The tokens of all leases of a budget are at most its limit, as far as the replicas could keep it. A call
// declares what a replica uses, so a lost reply or a repeated call changes nothing, and a replica restores lost data by
// declaring everything that it uses. A script is one round trip, and reads the clock of Redis once. Every key has a TTL. Redis gets no
// credentials.
//
// Start with [Ledger.Admit], then read roundtrip.go and roundtrip.lua. Its rule for clients is divide.lua. account.go is for the time
// without Redis, heartbeat.go renews the leases, and shard.go follows the shards of a cluster.
package redisledger
