// Package servers starts the real servers that the integration tests need: Kafka and MySQL, each in a container of
// its own, on a host port that stays the same when the server is stopped, killed, frozen and started again.
//
// Servers start slowly. Share them over a package's tests (StartKafka and StartMySQL in TestMain, side by side) and
// give each test a topic, a job's name and a database of its own (KafkaServer.CreateTopic, MySQLServer.NewDatabase).
//
// Nothing here counts an open port for an answer: a server is ready when it has done the work that tests want of it.
// `make test` prepares the engine and the images (scripts/testbed); a test that needs them fails without.
package servers
