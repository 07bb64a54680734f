-- The tables that carry the protocol. Every statement of a migration can be run again: DDL commits by itself in
-- MySQL, so a migration that was broken off starts again from its first statement.

CREATE TABLE IF NOT EXISTS billing_schema (
  version  INT NOT NULL COMMENT 'number of the migration',
  name     VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'its file',
  checksum BINARY(32) NOT NULL COMMENT 'SHA-256 of that file',
  PRIMARY KEY (version)
) ENGINE = InnoDB COMMENT = 'migrations that are done on this shard';

CREATE TABLE IF NOT EXISTS billing_meta (
  id           TINYINT NOT NULL COMMENT 'always 1: there is one row',
  job          VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the job that these tables belong to',
  set_id       BINARY(16) NOT NULL COMMENT 'random id of the set of shards, the same on all of them',
  shard_number INT NOT NULL COMMENT 'place of this shard in the configuration, from 0',
  shard_count  INT NOT NULL COMMENT 'number of shards in the set',
  server_uuid  CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT '@@server_uuid of the server that has the shard',
  checksum     BINARY(32) NOT NULL COMMENT 'SHA-256 of the columns before it, see the digest of billing_epoch for the encoding',
  PRIMARY KEY (id),
  CONSTRAINT billing_meta_one_row CHECK (id = 1),
  CONSTRAINT billing_meta_number CHECK (shard_number >= 0 AND shard_number < shard_count)
) ENGINE = InnoDB COMMENT = 'whose tables these are';

CREATE TABLE IF NOT EXISTS billing_lane (
  kafka_topic     VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'input topic',
  kafka_partition INT NOT NULL COMMENT 'its partition: topic and partition are the lane',
  topic_id        BINARY(16) NOT NULL COMMENT 'Kafka''s id of the topic',
  incarnation     BIGINT NOT NULL COMMENT 'session that wrote the last committed epoch',
  seq             BIGINT NOT NULL COMMENT 'number of the last committed epoch, from 1',
  offset_next     BIGINT NOT NULL COMMENT 'offset behind that epoch',
  updated_at      DATETIME(6) NOT NULL COMMENT 'UTC, when that epoch was prepared',
  PRIMARY KEY (kafka_topic, kafka_partition),
  CONSTRAINT billing_lane_seq CHECK (seq >= 1 AND incarnation >= 1 AND offset_next >= 0)
) ENGINE = InnoDB COMMENT = 'one row for each lane: its last committed epoch; every branch changes it first';

CREATE TABLE IF NOT EXISTS billing_epoch (
  kafka_topic     VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'input topic',
  kafka_partition INT NOT NULL COMMENT 'its partition',
  seq             BIGINT NOT NULL COMMENT 'number of the epoch, from 1, without gaps',
  topic_id        BINARY(16) NOT NULL COMMENT 'Kafka''s id of the topic',
  incarnation     BIGINT NOT NULL COMMENT 'session that wrote the epoch',
  gtrid           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'name of its branch',
  offset_from     BIGINT NOT NULL COMMENT 'offset_next of the epoch before',
  offset_next     BIGINT NOT NULL COMMENT 'offset behind the last record',
  records_in      BIGINT NOT NULL COMMENT 'records of the whole epoch, the same on every shard',
  applied         BIGINT NOT NULL COMMENT 'of records_in: booked',
  duplicates      BIGINT NOT NULL COMMENT 'of records_in: booked before, the same content',
  conflicts       BIGINT NOT NULL COMMENT 'of records_in: booked before, other content; kept in billing_rejects',
  rejected        BIGINT NOT NULL COMMENT 'of records_in: no valid event; kept in billing_rejects',
  shard_applied   BIGINT NOT NULL COMMENT 'of applied: booked on this shard',
  shard_rejects   BIGINT NOT NULL COMMENT 'of conflicts and rejected: kept on this shard',
  ledger_on       TINYINT NOT NULL COMMENT '1: what was booked is in billing_ledger; 0: the ledger was off',
  prepared_at     DATETIME(6) NOT NULL COMMENT 'UTC, clock of the service',
  row_marks       MEDIUMBLOB NOT NULL COMMENT 'place and checksum of each row that the epoch has on this shard, so that a changed one can be named',
  digest          BINARY(32) NOT NULL COMMENT 'SHA-256 of the digest before it, the epoch''s rows on this shard, and this row',
  PRIMARY KEY (kafka_topic, kafka_partition, seq),
  CONSTRAINT billing_epoch_equation CHECK (records_in = applied + duplicates + conflicts + rejected),
  CONSTRAINT billing_epoch_counts CHECK (applied >= 0 AND duplicates >= 0 AND conflicts >= 0 AND rejected >= 0),
  CONSTRAINT billing_epoch_shard CHECK (shard_applied BETWEEN 0 AND applied AND shard_rejects BETWEEN 0 AND conflicts + rejected),
  CONSTRAINT billing_epoch_range CHECK (offset_from >= 0 AND offset_next > offset_from AND records_in <= offset_next - offset_from),
  CONSTRAINT billing_epoch_seq CHECK (seq >= 1 AND incarnation >= 1),
  CONSTRAINT billing_epoch_ledger CHECK (ledger_on IN (0, 1))
) ENGINE = InnoDB COMMENT = 'append-only: one row for each epoch of a lane, on every shard';

CREATE TABLE IF NOT EXISTS billing_epoch_sum (
  kafka_topic     VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'input topic',
  kafka_partition INT NOT NULL COMMENT 'its partition',
  seq             BIGINT NOT NULL COMMENT 'number of the epoch',
  currency        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'code, upper case',
  charge_amount   DECIMAL(65,12) NOT NULL COMMENT 'sum of the epoch''s charges on this shard, in units of the currency',
  credit_amount   DECIMAL(65,12) NOT NULL COMMENT 'sum of its credits, signed',
  entry_count     BIGINT NOT NULL COMMENT 'booked messages, of shard_applied',
  PRIMARY KEY (kafka_topic, kafka_partition, seq, currency),
  CONSTRAINT billing_epoch_sum_signs CHECK (charge_amount >= 0 AND credit_amount <= 0 AND entry_count > 0),
  CONSTRAINT billing_epoch_sum_currency CHECK (REGEXP_LIKE(currency, '^[A-Z][A-Z0-9]{2,15}$', 'c'))
) ENGINE = InnoDB COMMENT = 'append-only: what each epoch booked on this shard, by currency';
