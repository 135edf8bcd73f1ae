// Package hostile is an upstream that means ill, for tests of package limits:
// it counts every limit of Document B section 8 by naive code of its own, in
// the strictest way that any upstream could, and behaves as badly as one might.
//
// Every request is counted at some moment between its sending and its answer,
// each limit at its own. Windows begin anywhere, the clock is another one and
// told in whole seconds, rate headers arrive out of order, answers are lost,
// the upstream goes on working on what was given up (for less than ten
// seconds), somebody else uses the token, and limit errors come for no reason.
//
// [Draw] makes a [Scenario] of a seed; [Scenario.Run] runs it in a bubble of
// virtual time (testing/synctest) over any ledger and returns a [Report].
//
// What it holds against a limiter: a request counted beyond a limit, and a
// request granted although a cool-down or a closed window had been told that
// was not over when it arrived. What it does not, because nobody can help it:
// primary requests beyond the limit up to the number that others have made
// since the last news (limits.md I3), CPU time that a request took beyond what
// its operation let expect (I6), and copies that a transport sent by itself,
// until it has told.
package limitstest
