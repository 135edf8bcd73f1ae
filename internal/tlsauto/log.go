package tlsauto

import (
	"context"
	"log/slog"
	"time"

	"go.uber.org/zap/zapcore"
)

// zapCore is a zapcore.Core that forwards the log of the ACME library to slog.
type zapCore struct{ slog.Handler }

// slogLevel converts a level of zap. Adjacent levels differ by 1 in zap and by 4 in slog.
func slogLevel(l zapcore.Level) slog.Level { return min(slog.Level(4*l), slog.LevelError) }

func (c zapCore) Enabled(l zapcore.Level) bool {
	return c.Handler.Enabled(context.Background(), slogLevel(l))
}

func (c zapCore) With(fields []zapcore.Field) zapcore.Core {
	return zapCore{c.WithAttrs(attrs(fields))}
}

func (c zapCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(time.Now(), slogLevel(e.Level), "certificates: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.Handle(context.Background(), r)
}

// Sync implements zapcore.Core. Sync has no effect, because records are not buffered.
func (zapCore) Sync() error { return nil }

// attrs converts the fields of a record, except the address of the cache in memory.
func attrs(fields []zapcore.Field) []slog.Attr {
	e := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(e)
	}
	var list []slog.Attr
	delete(e.Fields, "cache")
	for name, value := range e.Fields {
		list = append(list, slog.Any(name, value))
	}
	return list
}
