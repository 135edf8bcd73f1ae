// Package house holds the rules of this codebase as tests: which package may
// know which, how large things may be, what must have a comment. A rule that
// is only written down erodes; these fail.
//
// The tables are in imports_test.go, exceptions in exceptions_test.go, each
// row with its reason; an exception that is no longer needed fails too. The
// package has no code of its own, and reads syntax only: what a rule can't see
// in the source is for the reviewer.
package house
