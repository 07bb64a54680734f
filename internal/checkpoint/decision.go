package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// decisionVersion is the version of D's form that this build writes and reads.
const decisionVersion = 1

// maxDecision bounds the encoded D, in bytes. It is stored as the metadata of
// an offset commit, which brokers limit to 4096 characters by default
// (offset.metadata.max.bytes): a longer one would let the transaction commit
// without the offset.
const maxDecision = 4000

// Decision is D: the record that makes an epoch committed. It names the gtrid
// it decides. It is written twice in one Kafka transaction, as the metadata of
// the lane's offset commit and as a record of <job>.decision; the two must be
// equal when read stably.
type Decision struct {
	Version     int    `json:"v"`
	Job         string `json:"job"`
	Topic       string `json:"topic"`
	TopicID     UUID   `json:"topic_id"` // a recreated topic is noticed
	Partition   int32  `json:"partition"`
	Partitions  int32  `json:"partitions"` // a changed count moves keys between lanes
	Incarnation int64  `json:"incarnation"`
	Seq         int64  `json:"seq"`             // 0 until the lane's first epoch
	GTRID       GTRID  `json:"gtrid,omitempty"` // of epoch Seq; empty with Seq 0
	Shards      int    `json:"shards"`
	Fingerprint string `json:"fingerprint"`
	Settings    string `json:"settings"` // what the fingerprint is of, for people; never compared

	Next        int64 `json:"next"`         // offset of the first record that is not decided
	LeaderEpoch int32 `json:"leader_epoch"` // of the record before Next; -1 where unknown

	StreamTime      int64 `json:"stream_time"`      // largest event time applied, µs since 1970 UTC; 0 before the first
	ForgottenBefore int64 `json:"forgotten_before"` // events before it are too old for ever, µs since 1970 UTC

	StateFrom  int64  `json:"state_from"` // range of <job>.state that this epoch wrote: [StateFrom, StateNext)
	StateNext  int64  `json:"state_next"`
	OldestLive int64  `json:"oldest_live"` // first offset of <job>.state that a restore needs
	Count      uint64 `json:"count"`       // entries of the dedup state, and their checksum
	Checksum   uint64 `json:"checksum"`

	Build string `json:"build"` // who wrote it; never compared
}

// Fingerprint is a hash of what must not change between runs of a job: another
// set of shards, window or type prefix under the same job's name is another
// deployment.
func Fingerprint(set UUID, window time.Duration, typePrefix string) string {
	h := sha256.New()
	h.Write(set[:])
	fmt.Fprintf(h, "%d:%d:%s", window, len(typePrefix), typePrefix)
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// Settings is the readable form of what Fingerprint is made of, but for the
// shard set's id.
func Settings(window time.Duration, typePrefix string) string {
	return fmt.Sprintf("%s %s, %s %+q", keyWindow, window, keyPrefix, typePrefix)
}

// The keys of the configuration that Settings names.
const keyWindow, keyPrefix = "aggregate.window", "message.type_prefix"

// differing names the keys in which two texts of Settings differ.
func differing(then, here string) (keys []string) {
	thenWindow, thenPrefix, _ := strings.Cut(then, ", "+keyPrefix+" ")
	window, prefix, _ := strings.Cut(here, ", "+keyPrefix+" ")
	if thenWindow != window {
		keys = append(keys, keyWindow)
	}
	if thenPrefix != prefix {
		keys = append(keys, keyPrefix)
	}
	return keys
}

// Encode gives D's one form: ASCII JSON on one line, fields in a fixed order,
// so that two copies of one D are equal byte by byte.
func (d *Decision) Encode() (string, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("decision: encode: %w", err)
	}
	if len(b) > maxDecision {
		return "", fmt.Errorf("decision: %d bytes, more than the %d that fit an offset's metadata: shorten the job's or the topic's name", len(b), maxDecision)
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			return "", fmt.Errorf("decision: not ASCII: %q", b)
		}
	}
	return string(b), nil
}

// ErrNotDecision says that a text is no D at all: an offset whose metadata is
// empty or somebody else's was set by an administrator.
var ErrNotDecision = errors.New("not a decision of this service")

// ErrDecisionVersion says that a newer build wrote this D.
var ErrDecisionVersion = errors.New("decision of an unknown version")

// ParseDecision reads what Encode wrote. It fails with ErrNotDecision or
// ErrDecisionVersion.
func ParseDecision(s string) (Decision, error) {
	var v struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal([]byte(s), &v); err != nil || v.Version == 0 {
		return Decision{}, ErrNotDecision
	}
	if v.Version != decisionVersion {
		return Decision{}, fmt.Errorf("%w: %d, this build knows %d", ErrDecisionVersion, v.Version, decisionVersion)
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(s)))
	dec.DisallowUnknownFields()
	var d Decision
	if err := dec.Decode(&d); err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrNotDecision, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Decision{}, fmt.Errorf("%w: trailing data", ErrNotDecision)
	}
	return d, nil
}
