#!/bin/bash
# Run by the image mysql at the first start of an empty server: deploy/mysql/grants.sql for the database of each shard.
# Databases and passwords are those of the secrets, which are the only place that has them; users have grants.sql's names.
set -euo pipefail

password() { # of a secret user:password@tcp(host:port)/database
  local login
  login=$(cat "/run/secrets/$1")
  login=${login%%@tcp(*}
  echo "${login#*:}"
}

for shard in a b; do
  database=$(cat "/run/secrets/service-$shard")
  database=${database##*/}
  sql=$(cat /grants.sql)
  sql=${sql//EXISTS billing;/"EXISTS \`$database\`;"}
  sql=${sql//billing.billing_/"\`$database\`.billing_"}
  sql=${sql//'billing.*'/"\`${database//_/'\_'}\`.*"} # in a right on all tables _ is any character
  for user in service:billing migrate:billing_migrate reader:billing_reader; do
    login="'${user#*:}'@'%' IDENTIFIED BY"
    sql=${sql//"$login 'change-me'"/"$login '$(password "${user%:*}-$shard")'"}
  done
  MYSQL_PWD=$(cat /run/secrets/mysql-root) mysql --no-defaults --protocol=socket --socket=/var/run/mysqld/mysqld.sock --user=root <<<"$sql"
done
