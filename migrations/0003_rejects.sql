-- Records that were not booked, kept so that they can be read and sent again.

CREATE TABLE IF NOT EXISTS billing_rejects (
  kafka_topic      VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'input topic',
  kafka_partition  INT NOT NULL COMMENT 'its partition',
  kafka_offset     BIGINT NOT NULL COMMENT 'offset of the record',
  seq              BIGINT NOT NULL COMMENT 'epoch that kept it',
  kind             VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'rejected, or conflict: booked before with other content',
  reason           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'why, one word; conflict for conflicts',
  detail           VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'why, for people',
  raw_key          MEDIUMBLOB NULL COMMENT 'the record''s key, cut at 64 KiB; NULL if it has none',
  raw_value        MEDIUMBLOB NULL COMMENT 'the record''s value, cut at 64 KiB; NULL if it is null',
  raw_size         BIGINT NOT NULL COMMENT 'length of the whole value in bytes; 0 if it is null',
  raw_headers      MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the record''s headers in order, one a line: "key"="value", or "key"=null; both quoted as in Go, in ASCII; a last line +N: so many more did not fit in 256 KiB',
  value_hash       BINARY(32) NOT NULL COMMENT 'SHA-256 of the whole value',
  state            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open' COMMENT 'open, replayed or waived: changed by the operator',
  state_changed_at DATETIME(6) NULL COMMENT 'UTC, when the state was changed',
  state_note       VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'by whom and why',
  PRIMARY KEY (kafka_topic, kafka_partition, kafka_offset),
  KEY billing_rejects_state (state, reason),
  CONSTRAINT billing_rejects_kind CHECK (kind IN ('rejected', 'conflict') AND (kind = 'conflict') = (reason = 'conflict')),
  CONSTRAINT billing_rejects_size CHECK (raw_size >= 0 AND (raw_value IS NOT NULL OR raw_size = 0)),
  CONSTRAINT billing_rejects_state CHECK (state IN ('open', 'replayed', 'waived'))
) ENGINE = InnoDB COMMENT = 'append-only but for the state: rejected and conflicting records';
