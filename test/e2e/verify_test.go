package e2e

import (
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestVerify: what the service has written is right, beside it and after it.
func TestVerify(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, withPartitions(2))
	s := w.run("")
	for p := range int32(2) {
		for range 3 {
			ids := w.charge(p, 200)
			w.again(p, ids[:20])
			var bad []*kgo.Record
			for range 10 {
				bad = append(bad, &kgo.Record{Partition: p, Value: []byte("not json " + uuid.NewString()), Headers: structured})
				account, _ := chargeOf(ids[1])
				bad = append(bad, &kgo.Record{Partition: p, Value: message(ids[1], account, "77"), Headers: structured})
			}
			w.produce(bad...)
			w.command("verify").mustExit(0)
			w.waitAccounted()
		}
	}
	s.stop()
	v := w.command("verify")
	v.mustExit(0)
	if err := contains(v.output(), "ok: no difference, the decisions in Kafka agree\n"); err != nil {
		t.Error(err, v.output())
	}
	t.Log(v.output())
	w.exact()
}
