// Package model is docs/protocol.md as a program that can be searched: one lane,
// two owners and two shards, and every order in which they, their servers and the
// network between them may act. docs/model.md says what is in it, what is not, and
// what the search found.
//
// state.go has what a state is and when two are the same, servers.go what Kafka
// and MySQL do, session.go what a session does, by the protocol's steps, model.go
// their words and the ways to break them. search.go visits every state, alone.go
// lets one healthy owner work on from each.
package model
