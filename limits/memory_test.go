package limits_test

import (
	"testing"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/ledgertest"
)

func TestMemory(t *testing.T) {
	ledgertest.Run(t, func(_ *testing.T, rules limits.Rules) limits.Ledger { return limits.NewMemory(rules) })
}
