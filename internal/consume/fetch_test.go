package consume

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
	"billing/internal/event"
)

// failures notes the partitions that failed.
type failures map[int32]error

func (f failures) Failed(partition int32, _ uint64, err error) { f[partition] = err }

func (failures) Assigned([]int32)                                  {}
func (failures) Revoked(context.Context, []int32)                  {}
func (failures) Lost([]int32)                                      {}
func (failures) Deliver(int32, uint64, []event.Record, int, int64) {}
func (failures) Waiting() int64                                    { return 0 }

// The client goes on after an error that is of no partition, and with it all
// partitions do.
func TestErrorsOfNoPartitionStopNone(t *testing.T) {
	c, err := Open(Config{Brokers: []string{"127.0.0.1:1"}, Job: "j", Topic: "in"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.fetch.sessions[0], c.fetch.sessions[1] = 1, 2
	failed := failures{}
	c.fetch.hand(kgo.NewErrFetch(kerr.TopicAuthorizationFailed), failed)
	c.fetch.hand(kgo.NewErrFetch(errors.New("response too large")), failed)
	if len(failed) > 0 || len(c.fetch.sessions) != 2 {
		t.Fatalf("failed: %v", failed)
	}

	of := func(err error) kgo.Fetches {
		return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "in", Partitions: []kgo.FetchPartition{{Partition: 1, Err: err}}}}}}
	}
	c.fetch.hand(of(kerr.UnknownServerError), failed)
	if len(failed) != 1 || !errors.Is(failed[1], kerr.UnknownServerError) || checkpoint.AsRefusal(failed[1]) != nil || len(c.fetch.sessions) != 1 {
		t.Fatalf("failed: %v", failed)
	}
}

// TestEmptyRecordsCount: what bounds the lanes' memory feels records that hold
// nothing.
func TestEmptyRecordsCount(t *testing.T) {
	_, bytes := convert([]*kgo.Record{{}, {Key: []byte("key"), Value: []byte("value"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}})
	if want := 2*recordBytes + headerBytes + len("key") + len("value") + len("h") + len("v"); bytes != want {
		t.Errorf("two records take %d bytes, want %d", bytes, want)
	}
}
