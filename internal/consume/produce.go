package consume

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// With these versions a partition joins the transaction by the write
	// itself, and the end of a transaction moves the producer's epoch.
	produceVersion = 12
	endVersion     = 5

	maxBatch         = 640 << 10 // values of one batch, in bytes; a larger single value goes alone
	attrTransaction  = 0x10
	recordBatchMagic = 2
	crcFrom          = 21 // what a batch's checksum covers begins here
	lengthFrom       = 12 // and its length counts from here
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendBatch writes one batch to the partition within the transaction and
// returns after its acknowledgement, with the offset of its first value. The
// same bytes are sent again until an answer comes: by producer, epoch and
// sequence number the broker knows a batch that it has.
func (o *Owner) appendBatch(ctx context.Context, p *partitionLog, key []byte, values [][]byte) (offset int64, err error) {
	batch := encodeBatch(o.id, o.epoch, o.txn.sequence[p], key, values)
	o.txn.sent = true
	err = p.retry(ctx, "write to", func() error {
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = p.partition, batch
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.TopicID = p.topic, p.id
		rt.Partitions = append(rt.Partitions, rp)
		req := kmsg.NewPtrProduceRequest()
		req.TransactionID = kmsg.StringPtr(o.txnID)
		req.Acks = -1
		req.TimeoutMillis = int32(o.client.cfg.RequestTimeout.Milliseconds())
		req.Topics = append(req.Topics, rt)
		resp, err := req.RequestWith(ctx, o.cl.Broker(int(p.leader)))
		if err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return errNoPartition
		}
		answer := &resp.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
			if answer.ErrorMessage != nil {
				return fmt.Errorf("%w (%s)", err, *answer.ErrorMessage)
			}
			return err
		}
		if resp.Version < produceVersion {
			return &finalError{fmt.Errorf("the partition's leader speaks version %d of Produce, %d is needed", resp.Version, produceVersion)}
		}
		if answer.BaseOffset < 0 {
			return &finalError{errors.New("acknowledged without an offset")}
		}
		offset = answer.BaseOffset
		return nil
	})
	if err == nil {
		o.txn.sequence[p] += int32(len(values))
	}
	return offset, err
}

// encodeBatch is Kafka's record batch, version 2, uncompressed. The first
// value gets the key.
func encodeBatch(id int64, epoch int16, sequence int32, key []byte, values [][]byte) []byte {
	size := 0
	for _, v := range values {
		size += len(v) + 32
	}
	records := make([]byte, 0, size+len(key))
	for i, v := range values {
		r := kmsg.Record{OffsetDelta: int32(i), Key: key, Value: v}
		key = nil
		// Its own length comes first, as one byte while it is 0.
		r.Length = int32(recordLength(&r))
		records = r.AppendTo(records)
	}
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1,
		Magic:                recordBatchMagic,
		Attributes:           attrTransaction,
		LastOffsetDelta:      int32(len(values) - 1),
		FirstTimestamp:       now,
		MaxTimestamp:         now,
		ProducerID:           id,
		ProducerEpoch:        epoch,
		FirstSequence:        sequence,
		NumRecords:           int32(len(values)),
		Records:              records,
	}
	b := batch.AppendTo(make([]byte, 0, len(records)+64))
	binary.BigEndian.PutUint32(b[lengthFrom-4:], uint32(len(b)-lengthFrom))
	binary.BigEndian.PutUint32(b[crcFrom-4:], crc32.Checksum(b[crcFrom:], castagnoli))
	return b
}

// recordLength is the encoded size of a record behind its length.
func recordLength(r *kmsg.Record) int {
	value := r.Value
	r.Value = nil // its length takes one byte then, and the value none
	size := len(r.AppendTo(nil)) - 1
	r.Value = value
	if value != nil {
		size += len(value) + varintLength(len(value)) - 1
	}
	return size
}

func varintLength(n int) int {
	return len(binary.AppendVarint(nil, int64(n)))
}

// batches cuts values into pieces that fit one batch.
func batches(values [][]byte) (cut [][][]byte) {
	for len(values) > 0 {
		n, size := 1, len(values[0])
		for n < len(values) && size+len(values[n]) <= maxBatch {
			size += len(values[n])
			n++
		}
		cut = append(cut, values[:n])
		values = values[n:]
	}
	return cut
}
