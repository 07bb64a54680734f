package consume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"billing/internal/checkpoint"
)

// failed says what was being done when a broker could not be reached, or said
// no. A refusal stays what it is.
func failed(what, doing string, err error) error {
	return failedAt(what, doing, "kafka.brokers and the brokers' advertised.listeners", err)
}

// failedAt is failed where it is known which addresses were used.
func failedAt(what, doing, addresses string, err error) error {
	if checkpoint.AsRefusal(err) != nil {
		return err
	}
	next, denied := nextStep(err, addresses)
	return &checkpoint.ServerError{What: what, TurnedAway: denied, Next: next, Err: fmt.Errorf("kafka: %s: %w", doing, err)}
}

// nextStep is what can be done about an error; "" where that is not known. denied
// says that the cluster does not allow it.
func nextStep(err error, addresses string) (next string, denied bool) {
	var (
		host    *net.DNSError
		closed  *kgo.ErrFirstReadEOF
		timeout net.Error
	)
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return "grant this service its rights in Kafka; docs/grants.md lists them", true
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return groupNext(kerr.GroupAuthorizationFailed), true
	case errors.As(err, &closed):
		return "name a listener without TLS and SASL: Kafka is reached in plain text", false
	case errors.As(err, &host):
		return "correct the host in " + addresses + ", what resolves it, or start it: a container that is stopped has no name", false
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start the broker, or correct host and port in " + addresses, false
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "look whether the broker is up and can be reached from here: a firewall, host and port in " + addresses, false
	}
	return "", false
}
