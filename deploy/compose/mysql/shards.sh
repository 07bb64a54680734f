#!/bin/bash
# Run by the image mysql at the first start of an empty server: deploy/mysql/grants.sql for the database of each shard.
# Databases and passwords are those of the secrets, which are the only place that has them; users have grants.sql's names.
set -euo pipefail

# Each is of a secret user:password@tcp(host:port)/database?parameters
password() {
  local login
  login=$(cat "/run/secrets/$1")
  login=${login%%@tcp(*}
  plain "$1" password "${login#*:}"
}
database() {
  local name
  name=$(cat "/run/secrets/$1")
  name=${name##*/}
  plain "$1" "name of the database" "${name%%\?*}"
}

plain() { # secret what text: the text, as it can stand between quotes in a statement
  case $3 in
    *[\'\`\\]*)
      echo "shards.sh: FAILED: the $2 in the secret $1 has a quote or a backslash; next step: take one without, and start again with an empty volume (docker compose down -v)" >&2
      exit 1
      ;;
  esac
  echo "$3"
}

for shard in a b; do
  database=$(database "service-$shard")
  sql=$(cat /grants.sql)
  sql=${sql//EXISTS billing;/"EXISTS \`$database\`;"}
  sql=${sql//billing.billing_/"\`$database\`.billing_"}
  sql=${sql//'billing.*'/"\`${database//_/'\_'}\`.*"} # in a right on all tables _ is any character
  for user in service:billing migrate:billing_migrate reader:billing_reader; do
    login="'${user#*:}'@'%' IDENTIFIED BY"
    password=$(password "${user%:*}-$shard")
    sql=${sql//"$login 'change-me'"/"$login '$password'"}
  done
  MYSQL_PWD=$(cat /run/secrets/mysql-root) mysql --no-defaults --protocol=socket --socket=/var/run/mysqld/mysqld.sock --user=root <<<"$sql"
done
