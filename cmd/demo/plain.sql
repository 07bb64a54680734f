CREATE TABLE plain_ledger (
  id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  kafka_partition INT NOT NULL,
  kafka_offset    BIGINT NOT NULL,
  tenant_id       VARBINARY(64) NOT NULL DEFAULT 'default',
  source          VARBINARY(512) NOT NULL,
  event_id        VARBINARY(255) NOT NULL,
  entry_type      VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  account_id      VARBINARY(255) NOT NULL,
  sku             VARBINARY(255) NOT NULL,
  unit            VARBINARY(255) NOT NULL,
  currency        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount          DECIMAL(38,12) NOT NULL,
  quantity        DECIMAL(38,12) NULL,
  note            VARBINARY(1024) NULL,
  occurred_at     DATETIME(6) NOT NULL,
  window_start    DATETIME NOT NULL,
  booked_period   CHAR(7) CHARACTER SET ascii COLLATE ascii_bin AS (DATE_FORMAT(window_start, '%Y-%m')) VIRTUAL,
  content_hash    BINARY(8) NOT NULL,
  KEY plain_ledger_position (kafka_partition, kafka_offset)
) ENGINE = InnoDB;
CREATE TABLE plain_totals (
  tenant_id     VARBINARY(64) NOT NULL DEFAULT 'default',
  account_id    VARBINARY(255) NOT NULL,
  sku           VARBINARY(255) NOT NULL,
  unit          VARBINARY(255) NOT NULL,
  currency      VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  window_start  DATETIME NOT NULL,
  booked_period CHAR(7) CHARACTER SET ascii COLLATE ascii_bin AS (DATE_FORMAT(window_start, '%Y-%m')) VIRTUAL,
  charge_amount DECIMAL(65,12) NOT NULL,
  credit_amount DECIMAL(65,12) NOT NULL,
  net_amount    DECIMAL(65,12) AS (charge_amount + credit_amount) VIRTUAL,
  quantity      DECIMAL(65,12) NOT NULL,
  entry_count   BIGINT NOT NULL,
  PRIMARY KEY (account_id, sku, unit, currency, window_start)
) ENGINE = InnoDB;
CREATE TABLE plain_rejects (
  id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  kafka_partition INT NOT NULL,
  kafka_offset    BIGINT NOT NULL,
  kind            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  reason          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  detail          VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  raw_key         MEDIUMBLOB NULL,
  raw_value       MEDIUMBLOB NULL
) ENGINE = InnoDB;
CREATE TABLE plain_batches (
  id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  records_in BIGINT NOT NULL
) ENGINE = InnoDB;
