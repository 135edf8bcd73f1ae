package tlsauto

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestLogOfTheLibraryHasNoPointers(t *testing.T) {
	var out bytes.Buffer
	zapLogger(slog.New(slog.NewTextHandler(&out, nil))).Info("started background certificate maintenance", zap.String("cache", "0xe2d0bf1b100"), zap.Int("names", 2))
	failIf(t, !strings.Contains(out.String(), `msg="certificates: started background certificate maintenance" names=2`), "the line is %s", out.String())
}
