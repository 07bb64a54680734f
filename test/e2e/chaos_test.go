package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"billing/test/servers"
)

const (
	clock    = "15:04:05.000" // as in the log of the service
	longRun  = 3 * time.Minute
	manyRuns = 50              // faults, from which on a run is long
	atOnce   = 2               // faults
	goesOnIn = 3 * time.Minute // at the latest, when all is healed
)

// chaosSize is how much a run does, as make chaos is told.
type chaosSize struct {
	Duration time.Duration // 0: as long as the faults take
	Faults   int           // 0: as many as come in the time
	Messages int64
	Seed     uint64
	Runs     int
	Kills    bool // of instances, by SIGKILL
}

// chaosVariable is NAME=VALUE, with spaces between. Without it a run is the short
// one of make test, of a random seed of which every second one has no kills.
const chaosVariable = "BILLING_TEST_CHAOS"

func chaosSizeOf(text string, asked bool, now time.Time) (s chaosSize, err error) {
	s = chaosSize{Seed: uint64(now.UnixNano()), Runs: 1, Kills: asked || now.UnixNano()%2 == 0}
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		unknown := false
		switch name {
		case "DURATION":
			s.Duration, err = time.ParseDuration(value)
		case "FAULTS":
			s.Faults, err = strconv.Atoi(value)
		case "MESSAGES":
			s.Messages, err = strconv.ParseInt(value, 10, 64)
		case "SEED":
			s.Seed, err = strconv.ParseUint(value, 10, 64)
		case "RUNS":
			s.Runs, err = strconv.Atoi(value)
		case "KILLS":
			if s.Kills = value == "yes"; value != "yes" && value != "no" {
				err = fmt.Errorf("want yes or no, got %q", value)
			}
		default:
			unknown, err = true, fmt.Errorf("not known; known are DURATION, FAULTS, MESSAGES, SEED, RUNS, KILLS")
		}
		// What is given is meant: by itself a size comes only where nothing is said of it.
		switch none := map[string]bool{"DURATION": s.Duration <= 0, "FAULTS": s.Faults <= 0, "MESSAGES": s.Messages <= 0, "RUNS": s.Runs <= 0}[name]; {
		case value == "" && !unknown:
			err = errors.New("it is given, and empty; next step: a value, or leave it out")
		case none && err == nil:
			err = fmt.Errorf("want more than nothing, got %q; next step: leave it out for what it is by itself", value)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %s: %w", chaosVariable, name, err)
		}
	}
	if s.Duration == 0 && s.Faults == 0 {
		if s.Duration = 45 * time.Second; asked {
			s.Duration = 10 * time.Minute
		}
	}
	if s.Messages == 0 {
		s.Messages = int64(400 * s.Duration.Seconds())
		if s.Faults > 0 {
			s.Messages = 1500 * int64(s.Faults)
		}
	}
	return s, nil
}

// command repeats the run.
func (s chaosSize) command() string {
	out := "make chaos"
	if s.Duration > 0 {
		out += fmt.Sprintf(" DURATION=%s", s.Duration)
	}
	if s.Faults > 0 {
		out += fmt.Sprintf(" FAULTS=%d", s.Faults)
	}
	return out + fmt.Sprintf(" MESSAGES=%d KILLS=%s SEED=%d", s.Messages, map[bool]string{true: "yes", false: "no"}[s.Kills], s.Seed)
}

// TestChaos: one to four instances share the lanes, and what can happen to
// instances, servers and networks does, two things at once, as a seed says. No
// charge is lost or doubled, nobody ever sees half an epoch, and what is healed goes
// on by itself.
//
// make chaos runs it for as long, and as often, as one likes. A seed repeats a plan:
// its faults are the same ones in the same order, at about the same times.
func TestChaos(t *testing.T) {
	t.Parallel()
	text, asked := os.LookupEnv(chaosVariable)
	size, err := chaosSizeOf(text, asked, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if size.Runs == 1 {
		size.run(t)
		return
	}
	var lines []string
	for i := range size.Runs {
		one := size
		one.Seed += uint64(i)
		line := fmt.Sprintf("FAILED: seed %d: %s", one.Seed, one.command())
		t.Run(fmt.Sprint(one.Seed), func(t *testing.T) {
			line = one.run(t)
		})
		lines = append(lines, line)
		t.Logf("%d of %d runs:\n%s", i+1, size.Runs, strings.Join(lines, "\n"))
	}
}

// run is one run, and returns what there is to say of it in one line.
func (size chaosSize) run(t *testing.T) (line string) {
	t.Helper()
	random := rand.New(rand.NewPCG(size.Seed, 0))
	shards, partitions := 2+random.IntN(2), int32(4+random.IntN(3))
	t.Logf("%s\nseed %d: %d shards, %d partitions", size.command(), size.Seed, shards, partitions)

	m := newMany(t, shards, partitions, size.Seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat it: %s", size.command())
		}
	})
	defer func() {
		if t.Failed() {
			m.evidence()
		}
	}()
	p := &plan{
		Rand: random, up: []bool{true, true, false, false}, shards: shards, mysqls: m.mysqls,
		longStops: size.Duration >= longRun || size.Faults >= manyRuns, kills: size.Kills,
	}
	for i, up := range p.up {
		if up {
			m.start(m.slots[i])
		}
	}
	// The load keeps step with the faults, so that both end at about the same time.
	m.load.target = func() int64 {
		done := 1.0
		if size.Duration > 0 {
			done = min(done, time.Since(m.began).Seconds()/size.Duration.Seconds())
		}
		if size.Faults > 0 {
			done = min(done, float64(m.begun.Load()+1)/float64(size.Faults))
		}
		return int64(float64(size.Messages) * done)
	}
	over := func() bool {
		return (size.Faults == 0 || int(m.begun.Load()) >= size.Faults) && (size.Duration == 0 || time.Since(m.began) >= size.Duration)
	}
	ctx, stop := context.WithCancel(t.Context())
	var loads, watches sync.WaitGroup
	loads.Go(func() { m.load.run(ctx) })
	watching, unwatch := context.WithCancel(t.Context())
	watches.Go(func() { m.watcher.run(watching) })
	answers := map[int]int{} // answers of billing verify, by exit code
	watches.Go(func() { m.verifyAlways(watching, 5, func(v *verified) { answers[v.code]++ }) })
	t.Cleanup(func() { stop(); unwatch(); loads.Wait(); watches.Wait() })
	servers.Eventually(t, goesOnIn, func() error {
		if m.load.sentAll.Load() == 0 {
			return errors.New("nothing is sent")
		}
		return nil
	})
	m.recover("the first start")
	m.watcher.expectEpochs(time.Now(), time.Now())

	for begun := m.began; !over() && !t.Failed(); {
		f := p.next()
		m.until(begun.Add(f.after))
		m.makeWay(f)
		begun = time.Now()
		m.begin(f)
		if f.calm {
			m.calm(fmt.Sprint(f))
		}
	}
	m.calm("the last fault")
	m.watcher.expectEpochs(time.Time{}, time.Time{})
	servers.Eventually(t, goesOnIn, func() error {
		if sent := m.load.sentAll.Load(); sent < size.Messages && !t.Failed() {
			return fmt.Errorf("%d of %d messages are sent", sent, size.Messages)
		}
		return nil
	})
	stop()
	loads.Wait()
	m.recover("the last record")
	for _, s := range m.slots {
		if s.p != nil {
			m.comeOrGo(s)
		}
	}
	unwatch()
	watches.Wait()
	m.say("billing verify has answered, by exit code: %v", answers)
	m.report()
	if differences := m.check(size.Kills); len(differences) > 0 {
		m.show(differences)
	}
	verdict := "exact"
	if t.Failed() {
		verdict = "DIFFERENT"
	}
	line = fmt.Sprintf("%s: seed %d: %d messages, %d faults in %s (%s), %s", verdict, size.Seed, m.load.sentAll.Load(), m.begun.Load(),
		time.Since(m.began).Round(time.Second), listed(m.kinds), m.summary())
	t.Log(line)
	return line
}

// TestChaosSize: what make chaos is told, and the command that it says to repeat a
// run.
func TestChaosSize(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 1234)
	for _, c := range []struct {
		text    string
		asked   bool
		command string // or the error
		runs    int
	}{
		{"", false, "make chaos DURATION=45s MESSAGES=18000 KILLS=yes SEED=1234", 1},
		{"", true, "make chaos DURATION=10m0s MESSAGES=240000 KILLS=yes SEED=1234", 1},
		{"DURATION=3m SEED=7 KILLS=no", true, "make chaos DURATION=3m0s MESSAGES=72000 KILLS=no SEED=7", 1},
		{"FAULTS=200 MESSAGES=1000000 RUNS=10", true, "make chaos FAULTS=200 MESSAGES=1000000 KILLS=yes SEED=1234", 10},
		{"FAULTS=20", true, "make chaos FAULTS=20 MESSAGES=30000 KILLS=yes SEED=1234", 1},
		{"DURATION=1m SEED=0", true, "make chaos DURATION=1m0s MESSAGES=24000 KILLS=yes SEED=0", 1},
		{"FAULT=20", true, "BILLING_TEST_CHAOS: FAULT: not known", 0},
		{"DURATON=1m", true, "BILLING_TEST_CHAOS: DURATON: not known", 0},
		{"DURATON=", true, "BILLING_TEST_CHAOS: DURATON: not known", 0},
		{"KILLS=maybe", true, "BILLING_TEST_CHAOS: KILLS: want yes or no", 0},
		{"KILLS=", true, "BILLING_TEST_CHAOS: KILLS: it is given, and empty", 0},
		{"SEED= MESSAGES=10", true, "BILLING_TEST_CHAOS: SEED: it is given, and empty", 0},
		{"DURATION=", true, "BILLING_TEST_CHAOS: DURATION: it is given, and empty", 0},
		{"RUNS=0", true, "BILLING_TEST_CHAOS: RUNS: want more than nothing", 0},
		{"MESSAGES=0", true, "BILLING_TEST_CHAOS: MESSAGES: want more than nothing", 0},
		{"FAULTS=0", true, "BILLING_TEST_CHAOS: FAULTS: want more than nothing", 0},
		{"DURATION=0", true, "BILLING_TEST_CHAOS: DURATION: want more than nothing", 0},
		{"DURATION=-1m", true, "BILLING_TEST_CHAOS: DURATION: want more than nothing", 0},
		{"DURATION=long", true, "BILLING_TEST_CHAOS: DURATION: ", 0},
	} {
		s, err := chaosSizeOf(c.text, c.asked, now)
		switch {
		case c.runs == 0:
			if err == nil || !strings.Contains(err.Error(), c.command) {
				t.Errorf("%q: %v, want %q", c.text, err, c.command)
			}
		case err != nil || s.command() != c.command || s.Runs != c.runs:
			t.Errorf("%q: %d runs of %q (%v), want %d of %q", c.text, s.Runs, s.command(), err, c.runs, c.command)
		}
	}
	if s, err := chaosSizeOf("", false, now.Add(1)); err != nil || s.Kills {
		t.Errorf("an odd seed of the short run has kills (%v)", err)
	}
}
