package checkpoint

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// Lane is one partition of the input topic: the unit of order, dedup state,
// transactional id, decision and branches.
type Lane struct {
	Topic     string
	Partition int32
}

// String is the lane's name in logs, metrics and --accept: "topic/3".
func (l Lane) String() string {
	return l.Topic + "/" + strconv.FormatInt(int64(l.Partition), 10)
}

// UUID is a Kafka topic id or the random id of a set of shards.
type UUID [16]byte

// String is the plain lower-case hex form, 32 characters.
func (u UUID) String() string { return hex.EncodeToString(u[:]) }

// IsZero reports whether u was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// MarshalText is String, for Decision's JSON.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText parses what MarshalText wrote.
func (u *UUID) UnmarshalText(b []byte) error {
	if len(b) != 32 {
		return fmt.Errorf("uuid: want 32 hex characters, got %d", len(b))
	}
	_, err := hex.Decode(u[:], b)
	return err
}
