package main

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"billing/internal/checkpoint"
)

// TestLeadersAndCoordinatorsMove: on three brokers the leaders of all partitions and
// the coordinators of group and producer move all the time, while the stream goes on.
// Who is asked in vain says so: that ends no session.
func TestLeadersAndCoordinatorsMove(t *testing.T) {
	t.Parallel()
	p := newInprocess(t, 3)
	p.kafka.SessionTimeout, p.kafka.TransactionTimeout = 45*time.Second, time.Minute // nothing ends by a time-out
	p.kafka.RequestTimeout, p.kafka.ReadTimeout = 30*time.Second, 30*time.Second
	p.limits = checkpoint.DefaultLimits(time.Minute)
	var mu sync.Mutex
	coordinators, leaders := map[int32]bool{}, map[int32]bool{}
	stop := p.start((&net.Dialer{}).DialContext)
	moved := make(chan struct{})
	end := make(chan struct{})
	go func() {
		defer close(moved)
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			p.broker.ShufflePartitionLeaders()
			if n%4 == 0 {
				p.broker.RehashCoordinators()
			}
			mu.Lock()
			coordinators[p.broker.CoordinatorFor(inprocessJob+"."+inprocessTopic+".0")] = true
			leaders[p.broker.LeaderFor(inprocessJob+".decision", 0)] = true
			mu.Unlock()
		}
	}()
	everywhere := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(coordinators) == 3 && len(leaders) == 3
	}
	round := 0
	for ; round < 20 || !everywhere(); round++ {
		p.produce(round, 100)
	}
	p.waitExact()
	close(end)
	<-moved
	p.produce(round, 50)
	p.waitExact()
	stop()
	p.compareCounted()
	began := false
	for line := range strings.Lines(p.log.String()) {
		began = began || strings.Contains(line, `msg="lane running"`)
		if strings.Contains(line, "session ended") || strings.Contains(line, "lane stopped") {
			t.Errorf("a move is no reason to end a session: %s", line)
		}
	}
	if !began {
		t.Errorf("no session is told of: %s", &p.log)
	}
}
