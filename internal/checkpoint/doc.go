// Package checkpoint is the protocol: how one epoch of a lane becomes money
// exactly once. It is a two-phase commit. The participants are one MySQL
// branch per shard, the coordinator is a lane, and the decision is one Kafka
// transaction.
//
// The package knows neither Kafka nor MySQL. What it needs of both is in
// ports.go; internal/consume and internal/txsink implement it, and
// checkpointtest has fakes that answer "failed" and "applied, answer lost".
//
// Read session.go for a session (S0 to S6, the only way to start and the only
// way to recover) and checkpoint.go for a checkpoint (C1 to C9). The names of
// the steps are those of docs/protocol.md.
package checkpoint
