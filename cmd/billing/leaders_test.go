package main

import (
	"net"
	"sync"
	"testing"
	"time"
)

// TestLeadersAndCoordinatorsMove: on three brokers the leaders of all partitions and
// the coordinators of group and producer move all the time, while the stream goes on.
// Who is asked in vain says so: that ends no session.
func TestLeadersAndCoordinatorsMove(t *testing.T) {
	t.Parallel()
	p := newInprocess(t, 3)
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
	for round := range 20 {
		p.produce(round, 100)
	}
	p.waitExact()
	close(end)
	<-moved
	p.produce(100, 50)
	p.waitExact()
	stop()
	mu.Lock()
	defer mu.Unlock()
	if len(coordinators) < 3 || len(leaders) < 3 {
		t.Errorf("the producer's coordinator was on %v, the leader of the decisions on %v", coordinators, leaders)
	}
	p.compareCounted()
	if p.taken > 2 { // one; a slow machine may lose one to a time-out
		t.Errorf("%d sessions for %d epochs: a move is no reason to end one", p.taken, p.commits)
	}
}
