-- The database of one shard and its three users, each with the rights that it uses and no other: one who looks, the
-- service, and who makes the tables. Run it as the administrator on every shard's server before the first
-- `billing migrate`, with passwords of your own, and again before the `billing migrate` of a newer version: what is there
-- already stays as it is, its passwords too.
--
-- MySQL takes a right on a table that is not there yet only together with CREATE, which is then taken back.

CREATE DATABASE IF NOT EXISTS billing;

-- For looking: billing verify, lookup, status, xa list, and your own queries. It writes nothing.
CREATE USER IF NOT EXISTS 'billing_reader'@'%' IDENTIFIED BY 'change-me';
GRANT XA_RECOVER_ADMIN ON *.* TO 'billing_reader'@'%';
GRANT SELECT ON billing.* TO 'billing_reader'@'%';

-- The service: billing run, xa resolve, repair, config check --connect. It deletes nothing, changes no ledger and no epoch, and makes
-- no tables.
CREATE USER IF NOT EXISTS 'billing'@'%' IDENTIFIED BY 'change-me';
GRANT XA_RECOVER_ADMIN ON *.* TO 'billing'@'%';
GRANT CREATE, SELECT ON billing.billing_schema TO 'billing'@'%';
GRANT CREATE, SELECT, UPDATE ON billing.billing_meta TO 'billing'@'%';
GRANT CREATE, SELECT, INSERT, UPDATE ON billing.billing_lane TO 'billing'@'%';
GRANT CREATE, SELECT, INSERT ON billing.billing_epoch TO 'billing'@'%';
GRANT CREATE, SELECT, INSERT ON billing.billing_epoch_sum TO 'billing'@'%';
GRANT CREATE, SELECT, INSERT, UPDATE ON billing.billing_total TO 'billing'@'%';
GRANT CREATE, SELECT, INSERT ON billing.billing_ledger TO 'billing'@'%';
GRANT CREATE, SELECT, INSERT ON billing.billing_rejects TO 'billing'@'%';
REVOKE CREATE ON billing.billing_schema FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_meta FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_lane FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_epoch FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_epoch_sum FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_total FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_ledger FROM 'billing'@'%';
REVOKE CREATE ON billing.billing_rejects FROM 'billing'@'%';

-- For billing migrate. It books nothing.
CREATE USER IF NOT EXISTS 'billing_migrate'@'%' IDENTIFIED BY 'change-me';
GRANT XA_RECOVER_ADMIN ON *.* TO 'billing_migrate'@'%';
GRANT CREATE ON billing.* TO 'billing_migrate'@'%';
GRANT CREATE, SELECT, INSERT ON billing.billing_schema TO 'billing_migrate'@'%';
GRANT CREATE, SELECT, INSERT, UPDATE ON billing.billing_meta TO 'billing_migrate'@'%';
GRANT CREATE, SELECT ON billing.billing_lane TO 'billing_migrate'@'%';
GRANT CREATE, SELECT ON billing.billing_total TO 'billing_migrate'@'%';
GRANT CREATE, CREATE VIEW, DROP ON billing.billing_totals TO 'billing_migrate'@'%';
