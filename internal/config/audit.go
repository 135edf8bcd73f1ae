// Package risk grades what a valid configuration leaves open: who could read tokens,
// spend what is not theirs, or make the API ban them. Each risk is a row of one table
// ([Assess] walks it), with why it is one and what to do about it.
//
// Invariants: a finding names a place in the file and quotes no secret; a row looks at
// the configuration alone, never at the network. It is no proof of safety: what stands
// in front of the gateway, and who reads its memory, no file tells.
package config

import (
	"cmp"
	"io/fs"
	"slices"
)

// Grade is how much is at stake.
type Grade string

// The grades: High lets others have tokens or what they pay for, or rewrite the file
// that says who may; Medium needs another mistake, or costs a ban or what is cached;
// Low is a habit to drop.
const (
	High   Grade = "high"
	Medium Grade = "medium"
	Low    Grade = "low"
)

// Finding is one risk at one place.
type Finding struct {
	Grade        Grade
	Line, Column int    // of the value, or of the nearest that is given around it
	Key          string // empty for the file itself
	Why, Do      string
}

// AuditedFile is a configuration and the file that it stands in.
type AuditedFile struct {
	Config    *Config
	Positions Positions
	Mode      fs.FileMode
}

// Assess returns what it finds, the gravest first, then in the order of the file.
func Assess(f AuditedFile) []Finding {
	var found []Finding
	for _, r := range table {
		for _, key := range r.at(f) {
			line, column := 1, 1
			if key != "" {
				line, column = f.Positions.At(key)
			}
			found = append(found, Finding{r.grade, line, column, key, r.why, r.do})
		}
	}
	order := []Grade{High, Medium, Low}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Grade), slices.Index(order, b.Grade)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return found
}
