package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"billing/internal/checkpoint"
	"billing/migrations"
)

// identity looks whether all tables are there, at billing_schema, and at
// billing_meta.
func (v *verifier) identity(ctx context.Context) error {
	complete := true
	for _, s := range v.shards {
		ok, err := v.tablesOf(ctx, s)
		if err != nil {
			return err
		}
		complete = complete && ok
	}
	if !complete {
		v.told.note("tables are missing: nothing else was compared")
		return errStop
	}
	for _, s := range v.shards {
		if err := v.schema(ctx, s); err != nil {
			return err
		}
		if err := v.meta(ctx, s); err != nil {
			return err
		}
	}
	v.oneSet()
	return nil
}

// tablesOf reports whether a shard has all tables, and tells which it has not.
func (v *verifier) tablesOf(ctx context.Context, s *snapshot) (complete bool, err error) {
	there := map[string]bool{}
	err = s.scan(ctx, func(r row) error {
		there[r.text(0)] = true
		return nil
	}, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'billing\\_%'")
	if err != nil {
		return false, err
	}
	if len(there) == 0 {
		return false, fmt.Errorf("shard %s: %w", s.name, ErrNoTables)
	}
	complete = true
	for _, name := range slices.Concat(migrations.Tables, migrations.Views) {
		if !there[name] {
			complete = false
			v.told.difference(Difference{s.name, name, "the table", "it is not there", "the table or view, as migrate makes it"})
		}
	}
	return complete, nil
}

// schema compares billing_schema with the migrations of this build.
func (v *verifier) schema(ctx context.Context, s *snapshot) error {
	all, err := migrations.All()
	if err != nil {
		return err
	}
	tell := func(version int64, wrong, expected string) {
		v.told.difference(Difference{s.name, tableSchema, fmt.Sprintf("migration %d", version), wrong, expected})
	}
	done := map[int64]bool{}
	err = s.scan(ctx, func(r row) error {
		version := r.int(0)
		done[version] = true
		if version < 1 || version > int64(len(all)) {
			tell(version, fmt.Sprintf("a migration %s that this build does not know", printable(r.text(1))), "no row, or a newer build at work here")
			return nil
		}
		want := &all[version-1]
		if r.text(1) != want.Name {
			tell(version, "name is "+printable(r.text(1)), want.Name)
		}
		if r.text(2) != string(want.Checksum[:]) {
			tell(version, fmt.Sprintf("checksum is %x", r.text(2)), fmt.Sprintf("%x, the file's", want.Checksum))
		}
		return nil
	}, "SELECT version, name, checksum FROM billing_schema ORDER BY version")
	if err != nil {
		return err
	}
	for i := range all {
		if version := int64(i + 1); !done[version] {
			tell(version, "there is no row", all[i].Name+": migrations that are pending are done by billing migrate")
		}
	}
	return nil
}

// meta looks at billing_meta: one row, which says whose tables these are.
func (v *verifier) meta(ctx context.Context, s *snapshot) error {
	found := 0
	var server string
	err := s.scan(ctx, func(r row) error {
		key := "id " + r.text(0)
		tell := func(wrong, expected string) { v.told.difference(Difference{s.name, tableMeta, key, wrong, expected}) }
		if r.text(0) != "1" {
			tell("a second row", "one row, with id 1")
			return nil
		}
		found++
		var enc []byte
		for _, column := range r[:6] {
			enc = appendColumn(enc, column)
		}
		if sum := sha256.Sum256(enc); r.text(6) != string(sum[:]) {
			tell("the row does not have the checksum of its columns: one of them was changed by hand", fmt.Sprintf("job %s, shard number %d of %d, and the set and server that were recorded", v.cfg.Job, s.number, len(v.shards)))
			return nil // nothing else that it says can be trusted
		}
		s.known = copy(s.set[:], r[2]) == len(s.set)
		server = r.text(5)
		for _, c := range []struct{ column, is, want string }{
			{"job", r.text(1), v.cfg.Job},
			{"shard_number", r.text(3), strconv.Itoa(s.number)},
			{"shard_count", r.text(4), strconv.Itoa(len(v.shards))},
		} {
			if c.is != c.want {
				tell(c.column+" is "+printable(c.is), c.want+", as in the configuration")
			}
		}
		return nil
	}, "SELECT id, job, set_id, shard_number, shard_count, server_uuid, checksum FROM billing_meta ORDER BY id")
	if err != nil {
		return err
	}
	if found == 0 {
		v.told.difference(Difference{s.name, tableMeta, "id 1", "there is no row", "the row that migrate has written"})
	}
	return s.scan(ctx, func(r row) error {
		if server != "" && r.text(0) != server {
			v.told.note("shard %s: this server is %s, the recorded one is %s: a replica, a restored copy, or a failover that was not accepted yet", s.name, r.text(0), server)
		}
		return nil
	}, "SELECT @@server_uuid")
}

// oneSet holds the shards' sets against each other, and takes from them what the
// job's branches begin with.
func (v *verifier) oneSet() {
	var first *snapshot
	for _, s := range v.shards {
		switch {
		case !s.known:
		case first == nil:
			first = s
		case s.set != first.set:
			v.told.difference(Difference{s.name, tableMeta, "id 1", "set_id is " + s.set.String(), fmt.Sprintf("%s, that of shard %s", first.set, first.name)})
		}
	}
	if first != nil {
		v.owner = checkpoint.OwnerPrefix(v.cfg.Job, first.set)
		return
	}
	v.told.note("no shard says which set of shards this is: the names of branches were not checked")
}

// findLanes collects the lanes that any table of any shard has. To MySQL a topic
// with spaces behind it is equal to the one without, so their rows are read as one
// lane's; that such a row was changed its hashes show.
func (v *verifier) findLanes(ctx context.Context) error {
	lanes := map[checkpoint.Lane]*lane{}
	get := func(topic string, partition int64) *lane {
		id := checkpoint.Lane{Topic: strings.TrimRight(topic, " "), Partition: int32(partition)}
		if lanes[id] == nil {
			lanes[id] = newLane(v, id)
		}
		return lanes[id]
	}
	for i, s := range v.shards {
		err := s.scan(ctx, func(r row) error {
			get(r.text(0), r.int(1)).sides[i].row = &laneRow{topic: r.text(0), topicID: r.text(2), incarnation: r.int(3), seq: r.int(4), next: r.int(5)}
			return nil
		}, "SELECT kafka_topic, kafka_partition, topic_id, incarnation, seq, offset_next FROM billing_lane")
		if err != nil {
			return err
		}
		for _, table := range []string{tableEpoch, tableSum, tableLedger, tableReject} {
			err := s.scan(ctx, func(r row) error {
				get(r.text(0), r.int(1))
				return nil
			}, "SELECT DISTINCT kafka_topic, kafka_partition FROM "+table)
			if err != nil {
				return err
			}
		}
	}
	v.lanes = slices.SortedFunc(maps.Values(lanes), func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.id.Topic, b.id.Topic), cmp.Compare(a.id.Partition, b.id.Partition))
	})
	return nil
}
