package model

import "fmt"

// Model is the protocol with bounds, and whole unless something in Broken is set.
type Model struct {
	Epochs int // that the lane has to make money of: 1 to 3
	Wire   int // statements of a shard on their way without a caller: 1 or 2
	Broken
}

// Broken are ways to get the protocol wrong. Each takes one guard away.
type Broken struct {
	SettleFirst     bool // S4 before S3
	ReadFirst       bool // S2 before S1
	NoTakeover      bool // S3 is left out: a session works with D.incarnation + 1 that nobody has decided
	TakeoverUnknown bool // S3 with an unknown outcome is taken as done
	Unstable        bool // S2 without require-stable
	NoFence         bool // an EndTxn of a fenced producer is accepted

	RetryInSession  bool // C9, and then the same gtrid in the same session
	SameIncarnation bool // a session takes D's incarnation, not the next one
	UndecidedUnsent bool // an EndTxn without an answer is taken as not sent: C9
	SomePrepared    bool // C4 before all shards have prepared
	NextTooEarly    bool // the next epoch before phase 2 is complete

	SettleAny       bool // S4 rolls back any other session's branch, also a larger incarnation's
	SweepAny        bool // the sweep does
	SweepOwn        bool // the sweep rolls back the own epoch in flight
	SettleByNumber  bool // S4 looks at the incarnation first, at D's gtrid never
	SweepByNumber   bool // the sweep does
	SeqOnly         bool // D's branch is known by its seq
	SettleNoRow     bool // S4 asks for no row
	UnknownXIDIsOK  bool // C8 takes "unknown XID" as committed
	NoReadBack      bool // C8 takes OK as committed, and reads no row
	LostAtOnce      bool // S4 does not look again
	NoSweep         bool
	NoLock          bool // the lane's row has no lock
	NoCompareAndSet bool // nor a condition
	NoEpochKey      bool // billing_epoch has no primary key
}

// step is one kind of transition, as docs/protocol.md and the code name it.
type step uint8

// The steps. stepText has their words.
const (
	stepFence step = iota
	stepRead
	stepWriteTakeover
	stepTakeover
	stepTakeoverGuess
	stepSend
	stepSettled
	stepPrepare
	stepWriteEpoch
	stepDecide
	stepRowThere
	stepNotListed
	stepPhase2Skipped
	stepEnd
	stepRollBackOwn
	stepRetry
	stepLanded
	stepExecuted
	stepUndone
	stepComeBack
	stepEndTxnLands
	stepLateFence
	stepStable
	stepRefuse
	steps
)

var stepText = [steps]string{ //nolint:gosec // words, no password
	stepFence:         "S1 fences: InitProducerID (Session.fenceAndRead)",
	stepRead:          "S2 reads D (Session.read)",
	stepWriteTakeover: "S3 writes its takeover, C4 and C5 (Session.write)",
	stepTakeover:      "S3 EndTxn: the takeover is decided (Session.decide)",
	stepTakeoverGuess: "S3 has no answer to EndTxn, and takes the takeover as done",
	stepSend:          "ends a branch (Session.act, Session.commit)",
	stepSettled:       "S4 finds the shard settled (Session.settleOnce)",
	stepPrepare:       "C3 prepares (Session.prepareAll)",
	stepWriteEpoch:    "C4 and C5 write the decision of its epoch (Session.write)",
	stepDecide:        "C7 EndTxn: the epoch is decided (Session.decide)",
	stepRowThere:      "C8 reads the epoch's row (Session.commit)",
	stepNotListed:     "C8 takes its XA COMMIT as done without the row",
	stepPhase2Skipped: "begins the next epoch before phase 2 is complete",
	stepEnd:           "crashes, or ends its session after an error",
	stepRollBackOwn:   "C9 rolls its own epoch back (Session.rollbackAll) and ends its session",
	stepRetry:         "C9 rolls its own epoch back, and tries the same name again",
	stepLanded:        "lands",
	stepExecuted:      "MySQL has executed XA COMMIT",
	stepUndone:        "MySQL has answered OK to XA COMMIT and undone it: prepared again",
	stepComeBack:      "a replica is promoted that has received the prepare only: D's branch comes back",
	stepEndTxnLands:   "a late EndTxn lands: it is decided",
	stepLateFence:     "a late InitProducerID lands, or the broker ends the open transaction by its time-out",
	stepStable:        "the broker has written the markers: the offset is stable",
	stepRefuse:        "stops the lane",
}

// label says which transition it was: who did it, with what and on which shard.
type label struct {
	who  int8 // owner; -1 a server or the network
	step step
	on   int8                     // shard; -1 none
	with statement                // that is sent, landed or judged
	left [shards][wires]statement // by a session that ended: on their way from now on
	late bool                     // what is sent is on its way for long
	sent bool                     // and its EndTxn is on its way too
}

func (l label) String() string {
	who := "       "
	if l.who >= 0 {
		who = "owner " + string(rune('A'+l.who))
	}
	text := stepText[l.step]
	if l.with.kind != nothing {
		text += ": " + l.with.String()
	}
	if l.on >= 0 {
		text += fmt.Sprintf(" on s%d", l.on)
	}
	if l.late {
		text += ", which is on its way"
	}
	if l.sent {
		text += "; its EndTxn is still on its way"
	}
	for i := range l.left {
		for _, t := range l.left[i] {
			if t.kind != nothing {
				text += fmt.Sprintf("; %s on s%d is still on its way", t, i)
			}
		}
	}
	return who + "  " + text
}

func (t statement) String() string {
	return [...]string{"", "XA PREPARE", "XA COMMIT", "XA ROLLBACK"}[t.kind] + " " + t.g.String()
}

func (g gtrid) String() string { return fmt.Sprintf("(incarnation %d, seq %d)", g.inc, g.seq) }

// bad is what is wrong with a transition.
type bad uint8

// Harm to money comes first: lost, doubled or too early. Then lanes that stop for
// nothing. A broken rule does no harm yet: the whole protocol breaks none, while
// a broken variant shows by harm alone what its guard is for.
const (
	fine bad = iota
	harmEarly
	harmOther
	harmTwice
	harmHole
	harmRolledBack
	harmForgotten
	harmLost
	harmRefused
	harmStuck

	money = harmLost
	harm  = harmStuck

	ruleEarlyPrepare = iota // invariant 2
	ruleNotPrepared         // everything prepared before C7
	ruleNotCommitted        // invariant 3
	ruleCommit              // invariant 5
	ruleIncarnation         // D's incarnation grows by one
	ruleRollBack            // invariant 4
	everything       = ruleRollBack
)

func (b bad) String() string {
	return [...]string{
		fine:             "nothing is wrong",
		harmEarly:        "a shard shows an epoch that no decision names",
		harmOther:        "a shard shows an epoch by another branch than the decided one",
		harmTwice:        "a shard shows an epoch twice",
		harmHole:         "a shard shows an epoch without the one before",
		harmRolledBack:   "a decided branch is rolled back",
		harmForgotten:    "a decided epoch is decided otherwise, or not any more",
		harmLost:         "a shard has lost a decided epoch: neither its row nor its branch is there",
		harmRefused:      "the lane stops, and nothing was lost",
		harmStuck:        "a healthy owner alone does not come to the right end",
		ruleEarlyPrepare: "a branch is prepared before its incarnation's takeover is decided",
		ruleNotPrepared:  "an epoch is decided that is not prepared on every shard",
		ruleNotCommitted: "an epoch is decided before every shard shows the one before",
		ruleCommit:       "XA COMMIT of a branch that no decision names",
		ruleIncarnation:  "D's incarnation does not grow by one",
		ruleRollBack:     "XA ROLLBACK of a branch that an EndTxn on its way decides",
	}[b]
}

// verdict is judge's, as in internal/checkpoint/settle.go.
type verdict uint8

const (
	leave verdict = iota
	commitIt
	rollBack
	superseded
	older
	beyond
	impossible
)

// judge is S4's rule, and the sweep's, which is running.
func (m *Model) judge(g gtrid, o *owner, running bool) verdict {
	byNumber := !running && m.SettleByNumber || running && m.SweepByNumber
	anyOther := !running && m.SettleAny || running && m.SweepAny
	switch {
	case o.seq > 0 && (g == o.gtrid() || m.SeqOnly && g.seq == o.seq) && !byNumber:
		return commitIt
	case g.inc > o.inc && anyOther:
		return rollBack
	case g.inc > o.inc:
		return superseded
	case g.seq < o.seq:
		return older
	case g.inc < o.inc && g.seq > o.seq+1:
		return beyond
	case g.inc < o.inc:
		return rollBack
	case m.SameIncarnation && !running || m.SweepOwn && running:
		return rollBack
	case running:
		return leave
	default:
		return impossible
	}
}
