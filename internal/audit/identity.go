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
	missing, err := v.missingTables(ctx)
	if err != nil {
		return err
	}
	if missing {
		v.told.note("tables or their keys are missing: nothing else was compared")
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

// missingTables tells which tables are not there. Where no shard has any, nothing
// was lost: the job was never migrated, which is refused.
func (v *verifier) missingTables(ctx context.Context) (missing bool, err error) {
	expected := slices.Concat(migrations.Tables, migrations.Views)
	var lost []Difference
	for _, s := range v.shards {
		there := map[string]bool{}
		err := s.scan(ctx, func(r row) error {
			there[r.text(0)] = true
			return nil
		}, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'billing\\_%'")
		if err != nil {
			return false, err
		}
		for _, name := range expected {
			if !there[name] {
				lost = append(lost, Difference{s.name, name, "the table", "it is not there", "the table or view, as migrate makes it"})
			}
		}
	}
	if len(lost) == len(expected)*len(v.shards) {
		return false, &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonMigrationsPending, What: v.shards[0].name,
			Wrong: "no shard has any table of this service", Next: "run: billing migrate; or point the DSNs at the job's databases"}
	}
	for _, d := range lost {
		v.told.difference(d)
	}
	if len(lost) > 0 {
		return true, nil
	}
	return v.missingKeys(ctx)
}

// missingKeys tells which tables have lost their primary key, by which they are
// read: there may be rows twice.
func (v *verifier) missingKeys(ctx context.Context) (missing bool, err error) {
	for _, s := range v.shards {
		there := map[string]bool{}
		err := s.scan(ctx, func(r row) error {
			there[r.text(0)] = true
			return nil
		}, "SELECT table_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND index_name = 'PRIMARY'")
		if err != nil {
			return false, err
		}
		for _, name := range migrations.Tables {
			if !there[name] {
				missing = true
				v.told.difference(Difference{s.name, name, "the primary key", "it is not there: rows may be there twice", "the key, as migrate makes it"})
			}
		}
	}
	return missing, nil
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
			tell(version, fmt.Sprintf("a migration %s that this build does not know", Printable(r.text(1))), "no row, or a newer build at work here")
			return nil
		}
		want := &all[version-1]
		if r.text(1) != want.Name {
			tell(version, "name is "+Printable(r.text(1)), want.Name)
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
	var other error // an intact row of another deployment
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
		if is, want := []string{r.text(1), r.text(3), r.text(4)}, []string{v.cfg.Job, strconv.Itoa(s.number), strconv.Itoa(len(v.shards))}; !slices.Equal(is, want) {
			other = &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonShardsChanged, What: s.name,
				Wrong: fmt.Sprintf("its tables are those of job %s, shard %s of %s (counted from 0); in the configuration it is job %s, shard %s of %s: every row would look wrong", Printable(is[0]), is[1], is[2], want[0], want[1], want[2]),
				Next:  "give the job, and the shards in their order, as they were when they were migrated"}
		}
		return nil
	}, "SELECT id, job, set_id, shard_number, shard_count, server_uuid, checksum FROM billing_meta ORDER BY id")
	if err = cmp.Or(err, other); err != nil {
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
	others := 0
	for id := range lanes {
		if id.Topic != v.cfg.Topic {
			others++
		}
	}
	if others > 0 {
		v.told.note("%d lanes are of another topic than %s: their decisions were not compared", others, v.cfg.Topic)
	}
	v.lanes = slices.SortedFunc(maps.Values(lanes), func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.id.Topic, b.id.Topic), cmp.Compare(a.id.Partition, b.id.Partition))
	})
	return nil
}

// sameJob looks whether the job was started with what is configured: with another
// window every row would look wrong. It asks Kafka, if it can be reached.
func (v *verifier) sameJob(ctx context.Context) error {
	i := slices.IndexFunc(v.lanes, func(l *lane) bool { return l.id.Topic == v.cfg.Topic })
	known := slices.IndexFunc(v.shards, func(s *snapshot) bool { return s.known })
	if v.cfg.Kafka == nil || i < 0 || known < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(reachable, v.cfg.Patience))
	defer cancel()
	if _, err := v.cfg.Kafka.Partitions(ctx); err != nil {
		return nil //nolint:nilerr // see decisions, which says so
	}
	r, err := v.cfg.Kafka.Look(ctx, v.lanes[i].id.Partition)
	if err != nil {
		return nil //nolint:nilerr // likewise
	}
	d, err := checkpoint.ParseDecision(cmp.Or(r.Record, r.Metadata))
	if err != nil || d.Fingerprint == checkpoint.Fingerprint(v.shards[known].set, v.cfg.Window, v.cfg.TypePrefix) {
		return nil //nolint:nilerr // likewise
	}
	return &checkpoint.Refusal{Scope: checkpoint.EndsProcess, Reason: checkpoint.ReasonFingerprint, What: v.lanes[i].id.String(),
		Wrong: fmt.Sprintf("the job was started with %s, in the configuration it is %s; if these are equal, the databases are those of another set: every row would look wrong",
			d.Settings, checkpoint.Settings(v.cfg.Window, v.cfg.TypePrefix)),
		Next: "give what the job was started with"}
}
