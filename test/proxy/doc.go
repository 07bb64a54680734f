// Package proxy stands between a client and a real server and does faults at exact places.
//
// Proxy passes bytes and breaks connections: Cut, Refuse, Freeze, BlackHole, Delay, Throttle. Kafka and MySQL are
// proxies that read the protocol as well: a rule picks one request and drops it, loses its answer, holds either, or
// answers something else. Rules say when they have acted, so that a test waits for facts.
//
// A fault is in force when its call returns, but for the bytes that are being written at this moment.
package proxy
