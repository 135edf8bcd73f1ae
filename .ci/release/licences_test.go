package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

const isc = `Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby
granted, provided that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN
ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.
`

const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public
License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later
version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied
warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details.

You should have received a copy of the GNU General Public License along with this program. If not, see
<http://www.gnu.org/licenses/>.
`

func TestReadLicencesAcceptsOnlyAllowedLicences(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string // the expression, or a part of the error
	}{
		"one licence":                       {map[string]string{"LICENSE": mit}, "MIT"},
		"another spelling":                  {map[string]string{"Licence.md": isc}, "ISC"},
		"a package with a licence":          {map[string]string{"COPYING": mit, "sub/LICENSE.txt": isc}, "ISC AND MIT"},
		"a notice":                          {map[string]string{"LICENSE": mit, "NOTICE": "Made by us."}, "MIT"},
		"no files":                          {map[string]string{"README": mit}, "no licence in"},
		"a notice without a licence":        {map[string]string{"NOTICE": mit}, "no licence in"},
		"a licence that is not allowed":     {map[string]string{"LICENSE": gpl}, "licence GPL-3.0-or-later is not allowed"},
		"a package that is not allowed":     {map[string]string{"LICENSE": mit, "sub/LICENSE": gpl}, "licence GPL-3.0-or-later is not allowed"},
		"an unknown licence":                {map[string]string{"LICENSE": "All rights reserved. Ask us before you use this."}, "only 0% of the text is a known licence"},
		"an allowed licence with additions": {map[string]string{"LICENSE": mit + strings.Repeat("You must also pay a fee for each use. ", 10)}, "of the text is a known licence"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.Mkdir(filepath.Join(folder, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			for path, text := range c.files {
				if err := os.WriteFile(filepath.Join(folder, path), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, texts, err := readLicences([]string{folder, filepath.Join(folder, "sub")})
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got the error %v, want %s", err, c.want)
				}
				return
			}
			if got != c.want {
				t.Errorf("got the expression %q, want %q", got, c.want)
			}
			for path, text := range c.files {
				if !strings.Contains(string(texts), strings.TrimSpace(text)) {
					t.Errorf("the text of %s is missing", path)
				}
			}
		})
	}
}
