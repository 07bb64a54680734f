package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// Branch names. A gtrid has exactly 64 ASCII characters, the most that MySQL
// takes, in fields of fixed width:
//
//	exb1             magic and version                                    4
//	OOOOOOOOOOOOOOOO hash of job and shard set: whose branch it is       16
//	TTTTTTTTTTTT     hash of the input topic's id                        12
//	PPPPPPPP         partition                                            8
//	IIIIIIIIIIII     incarnation                                         12
//	SSSSSSSSSSSS     seq                                                 12
//
// XA names are one space per server, so the shard set's random id is part of
// the owner: with names only, the same job in another database of the server
// would roll our branches back.
const (
	xidMagic = "exb1"
	xidOwner = 16
	xidTopic = 12
	xidPart  = 8
	xidNum   = 12
	xidLen   = len(xidMagic) + xidOwner + xidTopic + xidPart + 2*xidNum

	ownerLen = len(xidMagic) + xidOwner      // a gtrid's prefix that says whose it is
	laneLen  = ownerLen + xidTopic + xidPart // a gtrid's prefix that says which lane's
	maxNum   = int64(1)<<(4*xidNum) - 1      // largest incarnation and seq that fit
)

// GTRID is the name of one epoch's branches: the same on every shard, which
// add their number as bqual. It is never used twice.
type GTRID string

// OwnerPrefix is what every gtrid of this job on this set of shards begins
// with. It alone tells ours from foreign ones, without Kafka.
func OwnerPrefix(job string, set UUID) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(job), job)
	h.Write(set[:])
	return xidMagic + hex.EncodeToString(h.Sum(nil))[:xidOwner]
}

// LanePrefix is what every gtrid of one lane begins with. owner is what
// OwnerPrefix gives.
func LanePrefix(owner string, topic UUID, partition int32) string {
	sum := sha256.Sum256(topic[:])
	return owner + hex.EncodeToString(sum[:])[:xidTopic] + fmt.Sprintf("%08x", uint32(partition))
}

func newGTRID(prefix string, incarnation, seq int64) GTRID {
	assert(0 < incarnation && incarnation <= maxNum, "incarnation %d fits a gtrid", incarnation)
	assert(0 < seq && seq <= maxNum, "seq %d fits a gtrid", seq)
	return GTRID(fmt.Sprintf("%s%012x%012x", prefix, incarnation, seq))
}

// Name is a gtrid taken apart.
type Name struct {
	Owner       string // what OwnerPrefix gives
	Lane        string // Owner, topic and partition: the lane's own prefix
	Partition   int32
	Incarnation int64
	Seq         int64
}

// Parse takes g apart. It fails for every name that this service did not make:
// such a branch is foreign and is never touched.
func (g GTRID) Parse() (Name, error) {
	s := string(g)
	if len(s) != xidLen || s[:len(xidMagic)] != xidMagic {
		return Name{}, fmt.Errorf("gtrid %q: not one of this service", s)
	}
	for _, c := range []byte(s[len(xidMagic):]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return Name{}, fmt.Errorf("gtrid %q: not one of this service", s)
		}
	}
	n := Name{Owner: s[:ownerLen], Lane: s[:laneLen]}
	part, err := strconv.ParseUint(s[laneLen-xidPart:laneLen], 16, 31)
	if err != nil {
		return Name{}, fmt.Errorf("gtrid %q: partition: %w", s, err)
	}
	n.Partition = int32(part)
	if n.Incarnation, err = strconv.ParseInt(s[laneLen:laneLen+xidNum], 16, 64); err != nil {
		return Name{}, fmt.Errorf("gtrid %q: incarnation: %w", s, err)
	}
	if n.Seq, err = strconv.ParseInt(s[laneLen+xidNum:], 16, 64); err != nil {
		return Name{}, fmt.Errorf("gtrid %q: seq: %w", s, err)
	}
	return n, nil
}
