package config

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// check holds the rules that a configuration must obey, each in words that say
// why. A key whose value could not be read is left alone: one fault, one
// problem.
type check struct {
	c        *Config
	r        *reading
	dsnCheck func(dsn string) error // nil checks the form only
}

func (k *check) all() {
	k.job()
	k.kafka()
	k.shards()
	k.times()
	k.messages()
	if k.usable("admin.listen") {
		if msg := address(k.c.Admin.Listen, true); msg != "" {
			k.fail("admin.listen", "%s", msg)
		}
	}
	k.oneOf("log.level", k.c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", k.c.Log.Format, "text", "json")
}

// oneOf holds a word against the list of those that are known.
func (k *check) oneOf(path, value string, known ...string) {
	if k.usable(path) && !slices.Contains(known, value) {
		k.fail(path, "%s: want one of %s", show(value), strings.Join(known, ", "))
	}
}

// fail reports a problem at the path, or at what it is a part of where it was
// not given itself.
func (k *check) fail(path, format string, args ...any) {
	k.r.problems = append(k.r.problems, place(k.r.sources, k.r.origin.file, path).problem(path, format, args...))
}

// usable reports whether the value at path was read without a problem.
func (k *check) usable(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if k.r.wrong[p] {
			return false
		}
	}
	return true
}

// required reports whether the key was given, and says so if it was not.
func (k *check) required(path string, empty bool) bool {
	if !k.usable(path) {
		return false
	}
	if empty {
		_, given := k.r.sources[path]
		switch {
		case given:
			k.fail(path, "is empty: give it a value, such as %s", example(path))
		case k.c.from == "":
			k.fail(path, "is missing: there is no default and no %s here; name the file with --config, or give the key as %s", DefaultFile, variableOf(path))
		default:
			k.fail(path, "is missing: there is no default; give it here, such as %s: %s, or as %s", path[strings.LastIndexByte(path, '.')+1:], example(path), variableOf(path))
		}
	}
	return !empty
}

var (
	jobForm      = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	kafkaForm    = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)
	shardForm    = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)
	currencyForm = regexp.MustCompile(`^[A-Z][A-Z0-9]{2,15}$`)
)

func (k *check) job() {
	if k.required("job", k.c.Job == "") && !jobForm.MatchString(k.c.Job) {
		k.fail("job", "%s: want 1 to 40 of a-z, 0-9 and -; no dots, which separate the parts of the transactional ids", show(k.c.Job))
	}
}

func (k *check) kafka() {
	c := &k.c.Kafka
	if k.required("kafka.brokers", len(c.Brokers) == 0) {
		seen := map[string]int{}
		for i, b := range c.Brokers {
			path := fmt.Sprintf("kafka.brokers[%d]", i)
			if !k.usable(path) {
				continue
			}
			if msg := address(b, false); msg != "" {
				k.fail(path, "%s", msg)
			} else if first, twice := seen[strings.ToLower(b)]; twice {
				k.fail(path, "%s is the same as kafka.brokers[%d]", show(b), first)
			}
			seen[strings.ToLower(b)] = i
		}
	}
	if k.required("kafka.topic", c.Topic == "") {
		switch {
		case !kafkaForm.MatchString(c.Topic) || c.Topic == "." || c.Topic == "..":
			k.fail("kafka.topic", "%s is no name of a Kafka topic: want 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", show(c.Topic))
		case jobForm.MatchString(k.c.Job):
			// Kafka refuses topics whose names differ only in . and _.
			for _, own := range []string{k.c.Job + ".decision", k.c.Job + ".state"} {
				if strings.ReplaceAll(c.Topic, "_", ".") == own {
					k.fail("kafka.topic", "%s is, or collides with, the job's own topic %s: name the topic that the messages come in, or rename the job", show(c.Topic), own)
				}
			}
		}
	}
	if k.usable("kafka.instance_id") && c.InstanceID != "" && (!kafkaForm.MatchString(c.InstanceID) || c.InstanceID == "." || c.InstanceID == "..") {
		k.fail("kafka.instance_id", "%s: want 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", show(c.InstanceID))
	}
	within(k, "kafka.session_timeout", c.SessionTimeout, 500*time.Millisecond, 30*time.Minute, "so long a dead instance's lanes stand still; brokers allow 6s to 30m by default")
	within(k, "kafka.max_batch_bytes", c.MaxBatchBytes, 1<<20, 1<<30, "a batch is held in memory as a whole")
	within(k, "kafka.transaction_timeout", c.TransactionTimeout, time.Second, 15*time.Minute, "an epoch's decision must fit in it, and readers of the topics wait so long for an owner that died; brokers allow 15m by default")
}

func (k *check) times() {
	c := k.c
	within(k, "checkpoint.interval", c.Checkpoint.Interval, 10*time.Millisecond, time.Minute, "charges show in the tables about so long after they were read")
	within(k, "checkpoint.max_interval", c.Checkpoint.MaxInterval, 10*time.Millisecond, time.Minute, "what a lane that is behind has read shows in the tables about so long after it")
	within(k, "checkpoint.max_rows", c.Checkpoint.MaxRows, 1, 1_000_000, "an epoch's rows are one branch on each shard")
	within(k, "checkpoint.max_records", c.Checkpoint.MaxRecords, 1, 1_000_000, "an epoch's writes are one branch on each shard")
	within(k, "checkpoint.max_bytes", c.Checkpoint.MaxBytes, 1<<20, 1<<30, "one message may have 1 MiB, and an epoch is held in memory")
	within(k, "memory.max_bytes", c.Memory.MaxBytes, 64<<20, 1<<40, "all lanes of an instance share it, for what is fetched and for two epochs each")
	within(k, "dedup.lateness", c.Dedup.Lateness, time.Second, 3650*day, "older events are refused, and ids are remembered so long")
	within(k, "dedup.skew", c.Dedup.Skew, 0, day, "events so far ahead of the clock are still booked")
	within(k, "dedup.max_ids", c.Dedup.MaxIDs, 1, 10_000_000_000, "each takes 35 to 60 bytes of memory")
	if !within(k, "aggregate.window", c.Aggregate.Window, time.Second, day, "it is the time span of one row of the totals") {
		return
	}
	if c.Aggregate.Window%time.Second != 0 {
		k.fail("aggregate.window", "%s is not a whole number of seconds", formatDuration(c.Aggregate.Window))
	} else if day%c.Aggregate.Window != 0 {
		k.fail("aggregate.window", "a day is not a whole number of windows of %s: rows would span midnight, and with it months; take one that divides 24h, such as 15m, 1h or 1d", formatDuration(c.Aggregate.Window))
	}
	if k.usable("dedup.lateness") && k.usable("dedup.skew") && c.Dedup.Skew <= day && c.Dedup.Lateness >= time.Second && c.Dedup.Skew > c.Dedup.Lateness {
		k.fail(k.givenOf("dedup.skew", "dedup.lateness"), "dedup.skew (%s) is more than dedup.lateness (%s): one event from the future would make all of the present too old",
			formatDuration(c.Dedup.Skew), formatDuration(c.Dedup.Lateness))
	}
}

// givenOf is the first of the paths that was given, so that a broken relation
// is reported at a line that exists.
func (k *check) givenOf(paths ...string) string {
	for _, p := range paths {
		if _, ok := k.r.sources[p]; ok {
			return p
		}
	}
	return paths[0]
}

// within holds a number between its bounds.
func within[T cmp.Ordered](k *check, path string, v, least, most T, why string) bool {
	switch {
	case !k.usable(path):
		return false
	case v < least:
		k.fail(path, "%s is less than %s, the least allowed: %s", format(v), format(least), why)
	case v > most:
		k.fail(path, "%s is more than %s, the most allowed: %s", format(v), format(most), why)
	default:
		return true
	}
	return false
}

// format is a value as the file would have it.
func format(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return formatDuration(v)
	case []string:
		return strings.Join(v, ",")
	}
	return fmt.Sprint(v)
}

// maxPrefix leaves room for the longest event type behind the prefix: a type
// has at most 255 bytes.
const maxPrefix = 240

func (k *check) messages() {
	c := &k.c.Message
	if k.required("message.type_prefix", c.TypePrefix == "") {
		if !strings.HasSuffix(c.TypePrefix, ".") {
			c.TypePrefix += "."
		}
		switch {
		case c.TypePrefix == ".":
			k.fail("message.type_prefix", "%s: want something before the dot, such as com.example.billing.", show(c.TypePrefix))
		case len(c.TypePrefix) > maxPrefix:
			k.fail("message.type_prefix", "is longer than %d bytes", maxPrefix)
		case strings.HasSuffix(c.TypePrefix, ".v1.") && (strings.HasSuffix(c.TypePrefix, "charge.v1.") || strings.HasSuffix(c.TypePrefix, "credit.v1.")):
			k.fail("message.type_prefix", "%s: charge.v1 and credit.v1 are added to it: want what is before them, such as %s", show(c.TypePrefix), example("message.type_prefix"))
		case !utf8.ValidString(c.TypePrefix) || strings.ContainsFunc(c.TypePrefix, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }):
			k.fail("message.type_prefix", "%s: no spaces or control characters", show(c.TypePrefix))
		}
	}
	if k.required("message.currencies", len(c.Currencies) == 0) {
		seen := map[string]int{}
		for i, cur := range c.Currencies {
			path := fmt.Sprintf("message.currencies[%d]", i)
			if !k.usable(path) {
				continue
			}
			if !currencyForm.MatchString(cur) {
				k.fail(path, "%s: want 3 to 16 of A-Z and 0-9, a letter first, such as EUR", show(cur))
			} else if first, twice := seen[cur]; twice {
				k.fail(path, "%s is the same as message.currencies[%d]", show(cur), first)
			}
			seen[cur] = i
		}
	}
}

// address says what is wrong with a host:port. Only an address to listen on
// may have no host, and port 0 (the system picks a free one: for tests).
func address(s string, listen bool) string {
	want := "want host:port, such as kafka-1:9092"
	if listen {
		want = "want host:port or :port, such as :8080"
	}
	host, port, err := net.SplitHostPort(s)
	switch {
	case s == "":
		return "is empty: " + want
	case strings.Contains(s, "://"):
		return show(s) + ": remove the protocol: " + want
	case strings.ContainsAny(s, ", \t") && !listen:
		return show(s) + ": one broker in each item, without spaces: " + want
	case err != nil && strings.Count(s, ":") > 1:
		return show(s) + ": an IPv6 address is in brackets, such as [::1]:9092: " + want
	case err != nil && !listen:
		return show(s) + ": the port is missing: " + want
	case err != nil || strings.ContainsAny(host, "/@ \t"):
		return show(s) + ": " + want
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || (n == 0 && !listen) {
		return fmt.Sprintf("%s: the port is no number from 1 to 65535: %s", show(s), want)
	}
	if host == "" && !listen {
		return show(s) + ": the host is missing: " + want
	}
	return ""
}
