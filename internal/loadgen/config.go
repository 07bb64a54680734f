package loadgen

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config says what to make, and what the service that reads it takes: what is
// good and what is bad must come out so there. All of it is the same again for
// the same Config. Where Now begins a window, another such Now changes nothing
// but the times.
type Config struct {
	Count    int // messages, repeats and bad ones included; 0 or more
	Accounts int // different accounts; 1 or more

	// Skew is the share (0 to 1) of the messages that goes to the hottest
	// accounts: one of a hundred, at least one. The rest goes to all alike.
	Skew float64

	// Duplicates is the share (0 to 1) of the messages that have the id of an
	// earlier one. One in ten of them says something else: a conflict.
	Duplicates float64

	// Bad is the share (0 to 1) of the messages that are no valid event. With
	// Duplicates at most 1.
	Bad float64

	// Everyday: amounts and quantities are less than 10,000 and have two places at
	// the most. Otherwise some are as fine, and some as large, as there are.
	Everyday bool

	Seed       int64
	Partitions int32 // of the topic; 1 or more

	// Now is the latest time of a good event, to be at or before the service's
	// clock when it reads the first message.
	Now time.Time

	// Rate is how many messages are written in a second, and Now moves on with
	// them. 0: as fast as can be, and Now stands still. Either is right for a run of
	// any length, as age is measured from the newest event of the partition.
	Rate float64

	Lateness       time.Duration // so much older than the newest of its partition an event may be; 1 s or more
	Window         time.Duration // of the totals; divides a day
	TypePrefix     string        // of the event types; ends in a dot
	Currencies     []string      // that the service accepts; one or more
	AmountAsNumber bool          // an amount may be a JSON number; off, that makes it bad
}

// Check says what of c makes no sense, all of it at once.
func (c Config) Check() error {
	var problems []error
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf("load: "+format, args...))
		}
	}
	share := func(name string, s float64) {
		wrong(!(s >= 0 && s <= 1), "%s is %v: give a share from 0 to 1", name, s)
	}
	wrong(c.Count < 0, "count is %d: give 0 or more messages", c.Count)
	wrong(c.Accounts < 1, "accounts is %d: give 1 or more", c.Accounts)
	share("skew", c.Skew)
	share("duplicates", c.Duplicates)
	share("bad", c.Bad)
	wrong(c.Duplicates+c.Bad > 1, "duplicates and bad are %.4g together: give at most 1", c.Duplicates+c.Bad)
	wrong(c.Partitions < 1, "partitions is %d: give 1 or more", c.Partitions)
	wrong(c.Now.Year() < 2001 || c.Now.Year() > lastYear, "now is %s: give a time in the years 2001 to %d", c.Now.Format(time.RFC3339), lastYear)
	if badRate := !(c.Rate >= 0) || math.IsInf(c.Rate, 0); badRate {
		wrong(badRate, "rate is %v: give messages a second, or 0", c.Rate)
	} else {
		years := c.seconds(c.Count) / (365 * 24 * 3600)
		wrong(years > MostYears, "count is %d at a rate of %v: that takes %.0f years, give at most %d", c.Count, c.Rate, years, MostYears)
	}
	wrong(c.Lateness < time.Second, "lateness is %s: give 1s or more", c.Lateness)
	// An event that is too old must have a time that is valid otherwise.
	wrong(c.Now.Add(-c.Lateness).Year() < 2001, "lateness is %s: give at most the time since 2001", c.Lateness)
	wrong(c.Window < time.Second || day%c.Window != 0 || c.Window%time.Second != 0,
		"window is %s: give whole seconds that divide a day", c.Window)
	wrong(c.TypePrefix == "" || c.TypePrefix[len(c.TypePrefix)-1] != '.', "type prefix is %q: give one that ends in a dot", c.TypePrefix)
	wrong(len(c.Currencies) == 0, "there are no currencies: give one or more")
	return errors.Join(problems...)
}

// Events in the future are ten years ahead, and times end with the year 2100.
const (
	lastYear  = 2079
	MostYears = 10 // that a load may take
)

const day = 24 * time.Hour

// seconds is when the message with index n is written, after the first one.
func (c Config) seconds(n int) float64 {
	if c.Rate == 0 {
		return 0
	}
	return float64(n) / c.Rate
}
