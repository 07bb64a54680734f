package admin

import "time"

// Instance is one instance as it sees itself, for who asks all of them.
type Instance struct {
	Job string `json:"job"`
	// Member is the instance's id in the consumer group at this moment, "" while it
	// is not in. Who found this port through the group knows by it whom it has found.
	Member string         `json:"member"`
	Build  string         `json:"build"`
	Notes  []string       `json:"notes"` // as in /healthz
	Lanes  []InstanceLane `json:"lanes"`
}

// InstanceLane is a lane as its owner sees it.
type InstanceLane struct {
	Lane
	Reason   string `json:"reason,omitempty"`    // of a lane that is stopped or paused: the runbook's word
	NextStep string `json:"next_step,omitempty"` // likewise

	Incarnation int64     `json:"incarnation"`    // of the last session; 0 before the first
	Seq         int64     `json:"seq"`            // of the last decision that it knows
	Next        int64     `json:"next"`           // its offset
	Position    int64     `json:"position"`       // behind the last record taken
	Moved       time.Time `json:"moved,omitzero"` // when a decision last moved the lane, or when it was assigned
	InDoubt     bool      `json:"in_doubt"`       // an epoch is between its barrier and its last commit
	Failures    int       `json:"failures"`       // sessions that have failed since the lane last moved
	LastError   string    `json:"last_error,omitempty"`
	IDs         int64     `json:"ids"` // dedup entries
}
