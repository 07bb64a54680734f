// Package config is the service's configuration: a YAML file, environment
// variables over it, and the rules that both must obey. It is the only place
// that knows viper.
//
// The file is read strictly first (source.go, schema.go): unknown and repeated
// keys and wrong types are problems with a YAML path and a line. viper then
// only decides what wins: environment, file, default. Every problem that can
// be seen without a network is found in one go (rules.go).
package config

import (
	"log/slog"
	"time"
)

// Config is everything that can be configured, as plain checked values.
// A key is the path of mapstructure names: kafka.brokers. Its variable is
// BILLING_ and the path in upper case with _ for the dot: BILLING_KAFKA_BROKERS.
// The shipped config.yaml explains each key; a test holds the two together.
type Config struct {
	Job        string     `mapstructure:"job"` // names the deployment: consumer group, transactional ids, topics; never changes
	Kafka      Kafka      `mapstructure:"kafka"`
	Shards     []Shard    `mapstructure:"shards"` // order is part of the deployment: never changes
	Checkpoint Checkpoint `mapstructure:"checkpoint"`
	Memory     Memory     `mapstructure:"memory"`
	Dedup      Dedup      `mapstructure:"dedup"`
	Aggregate  Aggregate  `mapstructure:"aggregate"`
	Message    Message    `mapstructure:"message"`
	Ledger     Ledger     `mapstructure:"ledger"`
	Admin      Admin      `mapstructure:"admin"`
	Log        Log        `mapstructure:"log"`
	FirstStart bool       `mapstructure:"first_start"` // a lane may start where Kafka and MySQL both know nothing of it

	sources  map[string]source
	from     string          // the file, "" without one
	problems []Problem       // see Usable
	wrong    map[string]bool // likewise: paths whose value can't be used
}

// Kafka says where the messages come from.
type Kafka struct {
	Brokers            []string      `mapstructure:"brokers"`             // host:port of some brokers
	Topic              string        `mapstructure:"topic"`               // the input
	SessionTimeout     time.Duration `mapstructure:"session_timeout"`     // how long a dead instance's lanes stand still
	TransactionTimeout time.Duration `mapstructure:"transaction_timeout"` // after it the broker aborts an owner that is gone
	InstanceID         string        `mapstructure:"instance_id"`         // static membership; "" is off
	MaxBatchBytes      int           `mapstructure:"max_batch_bytes"`     // what one batch may take in memory, decompressed
}

// Shard is one MySQL database that holds a part of the accounts.
type Shard struct {
	Name    string `mapstructure:"name"`
	DSN     DSN    `mapstructure:"dsn"`      // filled from DSNFile where that is given
	DSNFile string `mapstructure:"dsn_file"` // relative to the working directory
}

// Checkpoint says when an epoch of a lane ends: at whichever comes first.
type Checkpoint struct {
	Interval    time.Duration `mapstructure:"interval"`
	MaxInterval time.Duration `mapstructure:"max_interval"` // of a lane that is behind; no less than Interval in effect
	MaxRows     int           `mapstructure:"max_rows"`     // that the epoch writes, on all shards
	MaxRecords  int           `mapstructure:"max_records"`
	MaxBytes    int64         `mapstructure:"max_bytes"` // that the epoch holds in memory
}

// Memory says what one instance may hold of messages, beside the ids.
type Memory struct {
	MaxBytes int64 `mapstructure:"max_bytes"` // its lanes share it
}

// Dedup says how long and how many ids are remembered.
type Dedup struct {
	Lateness time.Duration `mapstructure:"lateness"` // older events are refused, so their ids can be forgotten
	Skew     time.Duration `mapstructure:"skew"`     // events further ahead of the clock are refused
	MaxIDs   int64         `mapstructure:"max_ids"`  // per instance; beyond it lanes pause
}

// Aggregate says what one row of the totals spans.
type Aggregate struct {
	Window time.Duration `mapstructure:"window"`
}

// Message says what a message must look like.
type Message struct {
	TypePrefix     string   `mapstructure:"type_prefix"` // always ends in a dot
	Currencies     []string `mapstructure:"currencies"`
	AmountAsNumber bool     `mapstructure:"amount_as_number"` // accept an amount that is a JSON number, by its literal
}

// Ledger says whether each applied message leaves a row of its own.
type Ledger struct {
	Enabled bool `mapstructure:"enabled"`
}

// Admin says where health and metrics are served.
type Admin struct {
	Listen string `mapstructure:"listen"` // host:port; an empty host is every address
}

// Log says how the service logs, on standard error.
type Log struct {
	Level  string `mapstructure:"level"`  // debug, info, warn or error
	Format string `mapstructure:"format"` // text or json
}

// Default is the configuration of an empty file. It lacks job, kafka.brokers,
// kafka.topic, shards, message.type_prefix and message.currencies, which have
// no sensible default.
func Default() Config {
	return Config{
		Kafka: Kafka{
			SessionTimeout:     10 * time.Second,
			TransactionTimeout: 30 * time.Second,
			MaxBatchBytes:      64 << 20,
		},
		Checkpoint: Checkpoint{
			Interval:    time.Second,
			MaxInterval: 5 * time.Second,
			MaxRows:     50_000,
			MaxRecords:  1_000_000,
			MaxBytes:    32 << 20,
		},
		Memory: Memory{MaxBytes: 512 << 20},
		Dedup: Dedup{
			Lateness: 35 * day,
			Skew:     5 * time.Minute,
			MaxIDs:   50_000_000,
		},
		Aggregate: Aggregate{Window: time.Hour},
		Ledger:    Ledger{Enabled: true},
		Admin:     Admin{Listen: ":8080"},
		Log:       Log{Level: "info", Format: "text"},
	}
}

// DSN is a data source name of the MySQL driver. It holds a password, so every
// way of printing it shows only that it is there; Reveal gives the text.
type DSN string

const hidden = "(hidden)"

// Reveal is the data source name itself: for the driver, never for a log.
func (d DSN) Reveal() string { return string(d) }

// String hides the DSN from every fmt verb that takes a Stringer.
func (d DSN) String() string {
	if d == "" {
		return ""
	}
	return hidden
}

// GoString hides the DSN from %#v.
func (d DSN) GoString() string { return d.String() }

// MarshalText hides the DSN from JSON and YAML.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// LogValue hides the DSN from slog.
func (d DSN) LogValue() slog.Value { return slog.StringValue(d.String()) }
