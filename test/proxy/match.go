package proxy

import (
	"bytes"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Key matches requests of these kinds.
func Key(keys ...kmsg.Key) func(*Request) bool {
	return func(r *Request) bool { return slices.Contains(keys, r.Key) }
}

// Containing matches requests of these kinds (all without any) whose body has the text in it: the name of a topic, a
// group or a transactional id. A job's name is in all three. A Fetch has a topic's id in the place of its name.
func Containing(text string, keys ...kmsg.Key) func(*Request) bool {
	return func(r *Request) bool {
		return (len(keys) == 0 || slices.Contains(keys, r.Key)) && bytes.Contains(r.Body, []byte(text))
	}
}

// On matches requests of one kind for which ok is true, as in
//
//	On(func(r *kmsg.EndTxnRequest) bool { return r.Commit })
//
// A request that can't be read is no match.
func On[T kmsg.Request](ok func(T) bool) func(*Request) bool {
	return func(r *Request) bool {
		if _, is := kmsg.RequestForKey(int16(r.Key)).(T); !is {
			return false
		}
		req, err := r.Decode()
		if err != nil {
			return false
		}
		t, is := req.(T)
		return is && ok(t)
	}
}

// EndTxn matches the end of a job's Kafka transactions: those that commit them, or those that abort them.
func EndTxn(commit bool, job string) func(*Request) bool {
	return On(func(r *kmsg.EndTxnRequest) bool {
		return r.Commit == commit && strings.HasPrefix(r.TransactionalID, job+".")
	})
}

// Markers matches the markers of a job's Kafka transactions, on their way between brokers. The same request may
// carry other jobs' markers, and a broker sends the next one only after the answer: who holds a job's markers holds
// those of everybody on that broker. After its request timeout (30 s) the broker sends them again.
func Markers(job string) func(*Request) bool { return Containing(job+".", kmsg.WriteTxnMarkers) }

// Statement matches statements that begin with prefix and have all the other texts in them.
func Statement(prefix string, containing ...string) func(string) bool {
	return func(statement string) bool {
		return strings.HasPrefix(statement, prefix) &&
			!slices.ContainsFunc(containing, func(s string) bool { return !strings.Contains(statement, s) })
	}
}
