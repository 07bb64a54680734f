package config

import (
	"reflect"
	"strconv"
	"time"
)

// Setting is one key's effective value, for a person to read.
type Setting struct {
	Path   string `json:"path"`   // YAML path; one per shard
	Value  any    `json:"value"`  // text, number, bool or list; spans as the file has them; of a shard its name and target
	Source string `json:"source"` // FILE:LINE, the variable's name, or default
}

// Text is the value on one line.
func (s Setting) Text() string { return format(s.Value) }

// File is the file that was read, "" where there was none.
func (c *Config) File() string { return c.from }

// Settings lists all keys in the order of the shipped file.
func (c *Config) Settings() []Setting {
	var all []Setting
	v := reflect.ValueOf(*c)
	for _, k := range leaves() {
		value := v.FieldByIndex(k.index).Interface()
		if d, ok := value.(time.Duration); ok {
			value = formatDuration(d)
		}
		shards, ok := value.([]Shard)
		if !ok {
			all = append(all, Setting{Path: k.path, Value: value, Source: c.sources[k.path].String()})
		}
		for i, s := range shards {
			path := k.path + "[" + strconv.Itoa(i) + "]"
			all = append(all, Setting{Path: path, Value: s.Name + " " + s.Target(), Source: c.sources[path].String()})
		}
	}
	return all
}

// Target is where the shard's DSN leads, without password and parameters:
// user:***@tcp(host:3306)/database.
func (s Shard) Target() string {
	t, err := s.DSN.split()
	if err != nil {
		return hidden
	}
	return t.String()
}
