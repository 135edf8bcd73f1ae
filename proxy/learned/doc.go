// Package learned remembers what responses of the upstream have taught: which credentials it accepts ([ClientTokens]), which user
// or installation a credential belongs to ([Identities]), which limits its operations use ([Resources]), how it reports limits
// ([LimitErrors]), which queries it does not answer in time ([HeavyQueries]), and which names numbers have ([Names]).
//
// All lists are bounded. They contain no credentials: a credential is known by the hash of its security class.
package learned
