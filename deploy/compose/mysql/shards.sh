#!/bin/bash
# Run by the image mysql at the first start of an empty server: a database and a user for each shard, and a user that
# may only read. Names and passwords are those of the secrets, which are the only place that has them.
set -euo pipefail

sql() { MYSQL_PWD=$(cat /run/secrets/mysql-root) mysql --no-defaults --protocol=socket --socket=/var/run/mysqld/mysqld.sock --user=root; }

reader_password=$(sed -n 's/^password=//p' /run/secrets/mysql-reader)
sql <<SQL
CREATE USER 'reader'@'%' IDENTIFIED BY '$reader_password';
SQL

for shard in /run/secrets/shard-*; do
  dsn=$(cat "$shard") # user:password@tcp(host:port)/database
  login=${dsn%@tcp(*} database=${dsn##*/}
  user=${login%%:*} password=${login#*:}
  sql <<SQL
CREATE DATABASE \`$database\`;
CREATE USER '$user'@'%' IDENTIFIED BY '$password';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP, REFERENCES, CREATE VIEW, SHOW VIEW ON \`$database\`.* TO '$user'@'%';
GRANT XA_RECOVER_ADMIN ON *.* TO '$user'@'%';
GRANT SELECT ON \`$database\`.* TO 'reader'@'%';
SQL
done
