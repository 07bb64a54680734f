package migrations

import (
	"fmt"
	"strings"
)

// Statements takes the migration apart, without the semicolons that end the
// statements. It knows quotes, back quotes and comments; the last statement must
// be ended too, so that a file that was cut off is noticed.
func (m Migration) Statements() ([]string, error) {
	statements, err := split(m.SQL)
	if err != nil {
		return nil, fmt.Errorf("migrations: %s: %w", m.Name, err)
	}
	return statements, nil
}

func split(text string) (statements []string, err error) {
	start, blank := 0, true // blank: only white space and comments since start
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"' || c == '`':
			end := closing(text, i)
			if end < 0 {
				return nil, fmt.Errorf("the quote %.20q is not closed", text[i:])
			}
			i, blank = end, false
		case c == '#', c == '-' && dashComment(text[i:]):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				end = len(text) - i
			}
			i += end
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return nil, fmt.Errorf("the comment %.20q is not closed", text[i:])
			}
			i += end + 3
		case c == ';':
			if !blank {
				statements = append(statements, strings.TrimSpace(text[start:i]))
			}
			start, blank = i+1, true
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			blank = false
		}
	}
	if !blank {
		return nil, fmt.Errorf("the last statement has no semicolon: %.60q", strings.TrimSpace(text[start:]))
	}
	return statements, nil
}

// closing finds the end of the quoted text that begins at i, or -1. A doubled
// quote is one in the text, and so is one behind a backslash, but not between
// back quotes.
func closing(text string, i int) int {
	quote := text[i]
	for i++; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote != '`':
			i++
		case text[i] != quote:
		case i+1 < len(text) && text[i+1] == quote:
			i++
		default:
			return i
		}
	}
	return -1
}

// dashComment reports whether text begins a comment: two dashes and a space,
// a control character or the end.
func dashComment(text string) bool {
	return strings.HasPrefix(text, "--") && (len(text) == 2 || text[2] <= ' ')
}
