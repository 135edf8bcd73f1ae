package service

import "github.com/weirgate/weir/internal/service/quirk"

// Faults are the quirks of the service.
type Faults = quirk.Set

// Duration is a time.Duration whose JSON form is a string such as "1.5s".
type Duration = quirk.Duration
