-- What the accounts owe, and why. Identifiers are VARBINARY: compared byte by byte, so that no two customers are
-- one to a collation. Later kinds of entries may need other signs; then a migration replaces the checks.
-- A currency's form is checked where each epoch's currencies are summed, in billing_epoch_sum: in these tables, with
-- their many rows, a regular expression would cost a tenth of the throughput. So would an index of the ledger by
-- account; who often reads it that way adds one: ALTER TABLE billing_ledger ADD KEY (account_id, occurred_at).

CREATE TABLE IF NOT EXISTS billing_total (
  total_key       BINARY(16) NOT NULL COMMENT 'SHA-256, cut, of the columns up to booked_period, see the digest of billing_epoch for the encoding',
  kafka_topic     VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'input topic of the lane that booked it',
  kafka_partition INT NOT NULL COMMENT 'its partition: no two lanes write the same row',
  tenant_id       VARBINARY(64) NOT NULL COMMENT 'always default',
  account_id      VARBINARY(255) NOT NULL COMMENT 'who is billed',
  sku             VARBINARY(255) NOT NULL COMMENT 'what for, empty if the messages have none',
  unit            VARBINARY(255) NOT NULL COMMENT 'unit of the quantity, empty if the messages have none',
  currency        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'code, upper case',
  window_start    DATETIME NOT NULL COMMENT 'UTC, first instant of the window in which it happened',
  booked_period   CHAR(7) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'YYYY-MM, UTC, period in which it is billed',
  charge_amount   DECIMAL(65,12) NOT NULL COMMENT 'sum of charges, in units of the currency',
  credit_amount   DECIMAL(65,12) NOT NULL COMMENT 'sum of credits, signed',
  quantity        DECIMAL(65,12) NOT NULL COMMENT 'in units of unit: charges add, credits subtract',
  entry_count     BIGINT NOT NULL COMMENT 'booked messages',
  updated_at      DATETIME(6) NOT NULL COMMENT 'UTC, when the last change was prepared, clock of the service',
  PRIMARY KEY (total_key),
  KEY billing_total_account (tenant_id, account_id, window_start),
  CONSTRAINT billing_total_signs CHECK (charge_amount >= 0 AND credit_amount <= 0 AND entry_count > 0),
  CONSTRAINT billing_total_currency CHECK (LENGTH(currency) >= 3),
  CONSTRAINT billing_total_period CHECK (booked_period LIKE '____-__')
) ENGINE = InnoDB COMMENT = 'totals by lane; read the view billing_totals';

CREATE OR REPLACE SQL SECURITY INVOKER VIEW billing_totals AS
SELECT
  tenant_id,
  account_id,
  sku,
  unit,
  currency,
  window_start,
  booked_period,
  SUM(charge_amount) AS charge_amount,
  SUM(credit_amount) AS credit_amount,
  SUM(charge_amount) + SUM(credit_amount) AS net_amount,
  SUM(quantity) AS quantity,
  CAST(SUM(entry_count) AS SIGNED) AS entry_count,
  MAX(updated_at) AS updated_at
FROM billing_total
GROUP BY tenant_id, account_id, sku, unit, currency, window_start, booked_period;

CREATE TABLE IF NOT EXISTS billing_ledger (
  kafka_topic     VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'input topic',
  kafka_partition INT NOT NULL COMMENT 'its partition',
  kafka_offset    BIGINT NOT NULL COMMENT 'offset of the message',
  seq             BIGINT NOT NULL COMMENT 'epoch that booked it',
  tenant_id       VARBINARY(64) NOT NULL COMMENT 'always default',
  source          VARBINARY(512) NOT NULL COMMENT 'the event''s source',
  event_id        VARBINARY(255) NOT NULL COMMENT 'the event''s id: with the source it names the event',
  entry_type      VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'charge or credit',
  account_id      VARBINARY(255) NOT NULL COMMENT 'who is billed: the event''s subject',
  sku             VARBINARY(255) NOT NULL COMMENT 'what for, empty if none',
  unit            VARBINARY(255) NOT NULL COMMENT 'unit of the quantity, empty if none',
  currency        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'code, upper case',
  amount          DECIMAL(38,12) NOT NULL COMMENT 'in units of the currency, signed',
  quantity        DECIMAL(38,12) NULL COMMENT 'in units of unit, as in the message; NULL if none',
  note            VARBINARY(1024) NULL COMMENT 'the reason that the message gives; NULL if none',
  occurred_at     DATETIME(6) NOT NULL COMMENT 'UTC, the event''s time, cut to microseconds',
  window_start    DATETIME NOT NULL COMMENT 'UTC, first instant of its window',
  booked_period   CHAR(7) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'YYYY-MM, UTC, period in which it is billed',
  dedup_key       BINARY(16) NOT NULL COMMENT 'hash of tenant, source and id',
  content_hash    BINARY(8) NOT NULL COMMENT 'hash of what the event says',
  PRIMARY KEY (kafka_topic, kafka_partition, kafka_offset),
  UNIQUE KEY billing_ledger_dedup (kafka_topic, kafka_partition, dedup_key),
  CONSTRAINT billing_ledger_signs CHECK (entry_type = 'charge' AND amount >= 0 OR entry_type = 'credit' AND amount <= 0),
  CONSTRAINT billing_ledger_quantity CHECK (quantity >= 0),
  CONSTRAINT billing_ledger_currency CHECK (LENGTH(currency) >= 3)
) ENGINE = InnoDB COMMENT = 'append-only: one row for each booked message';
