package policy

import _ "embed" // embeds the table of operations

//go:embed github/operations.tsv
var table string

// Table returns the text of github/operations.tsv, the table of all operations. The header of the file explains the
// columns.
func Table() string { return table }
