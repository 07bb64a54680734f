package consume_test

import (
	"flag"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"billing/internal/consume/consumetest"
)

// Every client, group and owner that the tests open is closed, so at the end
// nothing of them runs.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "40"); err != nil { // what runs side by side waits, mostly
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// fake starts a fake broker for one test.
func fake(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3), kfake.GroupMinSessionTimeout(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestOwner(t *testing.T) { consumetest.Owner(t, fake(t).ListenAddrs()) }

func TestFetch(t *testing.T) { consumetest.Fetch(t, fake(t).ListenAddrs()) }

func TestGroup(t *testing.T) { consumetest.Group(t, fake(t).ListenAddrs()) }

func TestTopics(t *testing.T) { consumetest.Topics(t, fake(t).ListenAddrs()) }

func TestLook(t *testing.T) { consumetest.Look(t, fake(t).ListenAddrs()) }

func TestFaults(t *testing.T) { consumetest.Faults(t, fake(t).ListenAddrs()) }

func TestEveryRequest(t *testing.T) {
	consumetest.EveryRequest(t, func(t *testing.T) []string { return fake(t).ListenAddrs() })
}

func TestLoad(t *testing.T) {
	c := fake(t)
	consumetest.RememberEnds(c)
	consumetest.Load(t, c.ListenAddrs())
}

func TestRace(t *testing.T) { consumetest.Race(t, fake(t).ListenAddrs(), nil) }
