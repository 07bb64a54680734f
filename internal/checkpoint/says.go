package checkpoint

// Word is what a decision says of a prepared branch, for the operator's tools.
type Word string

// The words.
const (
	Decided   Word = "decided"   // D names the branch: it is to be committed
	Undecided Word = "undecided" // D does not name it: it is to be rolled back
	Older     Word = "older"     // of an epoch before D's: the shard has come back older, nobody touches it
	Ahead     Word = "ahead"     // of a later session or epoch than D knows: D is not the last, or decisions are lost
)

// Says is the judgement that the lane's next session would come to. It is a
// fact only of a branch that is still listed after d was read, for an owner at
// work moves on; one that is Ahead calls for reading D again.
func (d *Decision) Says(g GTRID, n Name) Word {
	switch judge(g, n, d, d.Incarnation+1, false) {
	case commitIt:
		return Decided
	case rollBack:
		return Undecided
	case older:
		return Older
	default: // beyond, or an incarnation that D has not come to
		return Ahead
	}
}
