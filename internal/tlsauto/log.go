package tlsauto

import (
	"context"
	"log/slog"
	"time"

	"go.uber.org/zap/zapcore"
)

// zapCore hands on to slog what a library writes by zap.
type zapCore struct{ slog.Handler }

// level is the one of slog that a level of zap is.
func level(l zapcore.Level) slog.Level {
	switch {
	case l < zapcore.InfoLevel:
		return slog.LevelDebug
	case l < zapcore.WarnLevel:
		return slog.LevelInfo
	case l < zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Enabled implements zapcore.LevelEnabler.
func (c zapCore) Enabled(l zapcore.Level) bool {
	return c.Handler.Enabled(context.Background(), level(l))
}

// With implements zapcore.Core.
func (c zapCore) With(fields []zapcore.Field) zapcore.Core {
	return zapCore{c.WithAttrs(attrs(fields))}
}

// Check implements zapcore.Core.
func (c zapCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(time.Now(), level(e.Level), "certificates: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.Handle(context.Background(), r)
}

// Sync implements zapcore.Core; nothing is held back.
func (zapCore) Sync() error { return nil }

// attrs are the fields as zap itself understands them.
func attrs(fields []zapcore.Field) []slog.Attr {
	list := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		values := zapcore.NewMapObjectEncoder()
		f.AddTo(values)
		for name, value := range values.Fields {
			list = append(list, slog.Any(name, value))
		}
	}
	return list
}
