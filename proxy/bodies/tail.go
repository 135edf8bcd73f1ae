package bodies

import "io"

// Tail is a body that passes its last bytes, at most [MaxPeek], to a function at its end.
type Tail struct {
	io.ReadCloser
	tail  []byte
	ended func(tail []byte) // nil after the end
}

// NewTail returns a body that calls ended once.
func NewTail(body io.ReadCloser, ended func(tail []byte)) *Tail {
	return &Tail{body, make([]byte, 0, MaxPeek), ended}
}

func (t *Tail) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.keep(p[:n])
	if err == io.EOF {
		t.end()
	}
	return n, err
}

// Close also ends a body whose reader has read all bytes without io.EOF.
func (t *Tail) Close() error {
	t.end()
	return t.ReadCloser.Close()
}

// keep adds bytes to the tail.
func (t *Tail) keep(p []byte) {
	p = p[max(0, len(p)-MaxPeek):]
	if over := len(t.tail) + len(p) - MaxPeek; over > 0 {
		t.tail = t.tail[:copy(t.tail, t.tail[over:])]
	}
	t.tail = append(t.tail, p...)
}

func (t *Tail) end() {
	if ended := t.ended; ended != nil {
		t.ended = nil
		ended(t.tail)
	}
}
