package consume

import "github.com/twmb/franz-go/pkg/kgo"

// detach gives the records of a batch that is not compressed bytes of their own.
// Such records lie in the broker's answer itself, and one of them would keep all
// of it in memory: behind one lane that waits, the answers of all the others.
// Records that were compressed have a buffer for each batch.
func detach(records []*kgo.Record) {
	n := 0
	eachPlain(records, func(b *[]byte) { n += len(*b) })
	own := make([]byte, 0, n)
	eachPlain(records, func(b *[]byte) {
		if *b == nil {
			return // and an empty one stays empty
		}
		from := len(own)
		own = append(own, *b...)
		*b = own[from:len(own):len(own)]
	})
}

// shared reports whether one of these answers has records of several partitions: of
// lanes that let go of it at different times.
func shared(fetches kgo.Fetches) bool {
	for i := range fetches {
		with := 0
		for _, t := range fetches[i].Topics {
			for _, p := range t.Partitions {
				if len(p.Records) > 0 {
					with++
				}
			}
		}
		if with > 1 {
			return true
		}
	}
	return false
}

// mixed reports whether these answers show that the topic has Kafka transactions, by a
// control record, or by offsets that are left out: what was aborted comes in the same
// answers, and is no lane's.
func mixed(fetches kgo.Fetches) (is bool) {
	fetches.EachPartition(func(t kgo.FetchTopicPartition) {
		for i, r := range t.Records {
			if r.Attrs.IsControl() || i > 0 && r.Offset != t.Records[i-1].Offset+1 {
				is = true
				return
			}
		}
	})
	return is
}

// eachPlain calls fn for all bytes of records that are not compressed.
func eachPlain(records []*kgo.Record, fn func(b *[]byte)) {
	for _, r := range records {
		if r.Attrs.CompressionType() != 0 {
			continue
		}
		fn(&r.Key)
		fn(&r.Value)
		for i := range r.Headers {
			fn(&r.Headers[i].Value)
		}
	}
}
