package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// contender is a process that drains a topic.
type contender struct {
	cmd    *exec.Cmd
	done   <-chan struct{} // closed when it has ended
	said   func() string   // its log
	atWork string          // what its log says when it begins to take messages
}

// drain is a contender's way through the whole topic, as seen from outside: by the
// rows that are in MySQL for good.
type drain struct {
	messages int64
	began    time.Time // its process
	atWork   sample
	rows     []sample // from the first one that has any
	cpu      time.Duration
	peak     int64 // bytes, resident
}

// sample is how far it had come at a time.
type sample struct {
	at    time.Time
	share float64 // of the messages: 0 to 1
}

// rate is messages a second from a sample to the end.
func (d *drain) rate(from sample) float64 {
	last := d.rows[len(d.rows)-1]
	if last.share <= from.share { // of a load so small that it comes all at once
		from = d.atWork
	}
	return float64(d.messages) * (last.share - from.share) / last.at.Sub(from.at).Seconds()
}

// from is the first sample with at least that share.
func (d *drain) from(share float64) sample {
	for _, s := range d.rows {
		if s.share >= share {
			return s
		}
	}
	panic("the last one has all")
}

const drainWithin = 20 * time.Minute

// follow looks at a contender until all messages have their rows. progress says how much
// of them has come to the tables, from 0 to 1.
func follow(t *testing.T, c contender, messages int64, progress func() (float64, error)) *drain {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), drainWithin)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	d := &drain{messages: messages, began: time.Now()}
	for share := 0.0; share < 1; {
		select {
		case <-tick.C:
		case <-c.done:
			t.Fatalf("it has ended when %.1f %% were booked: %s", 100*share, c.cmd.ProcessState)
		case <-ctx.Done():
			t.Fatalf("after %s %.1f %% are booked", drainWithin, 100*share)
		}
		if d.atWork.at.IsZero() {
			if strings.Contains(c.said(), c.atWork) {
				d.atWork.at = time.Now()
			}
			continue
		}
		var err error
		if share, err = progress(); err != nil {
			t.Fatal(err)
		}
		if share > 0 {
			d.rows = append(d.rows, sample{time.Now(), share})
		}
	}
	d.peak = peak(t, c.cmd.Process.Pid)
	return d
}

// peak is the most memory that a process had resident, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "\nVmHWM:")
	line, _, _ = strings.Cut(line, " kB")
	kib, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatalf("%v: %s", err, status)
	}
	return kib << 10
}
