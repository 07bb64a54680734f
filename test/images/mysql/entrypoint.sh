#!/bin/bash
# Entry point of the stand-in for the image mysql: the same environment makes the same server.
#   MYSQL_ROOT_PASSWORD, MYSQL_ROOT_PASSWORD_FILE or MYSQL_ALLOW_EMPTY_PASSWORD, MYSQL_ROOT_HOST (default %),
#   MYSQL_DATABASE, MYSQL_USER with MYSQL_PASSWORD, /docker-entrypoint-initdb.d/*.{sh,sql,sql.gz}
# They count at the first start only; arguments go to mysqld at every start.
# The data live in /var/lib/mysql inside the container and survive stop, kill and start.
set -euo pipefail
shopt -s nullglob

if [ $# -eq 0 ] || [[ $1 == -* ]]; then set -- mysqld "$@"; fi
[ "$1" = mysqld ] || exec "$@"

data=/var/lib/mysql
socket=/var/run/mysqld/mysqld.sock

die() { echo "entrypoint: $*" >&2; exit 1; }
literal() { local s=${1//\\/\\\\}; printf "'%s'" "${s//\'/\\\'}"; }
name() { printf '`%s`' "${1//\`/\`\`}"; }

accounts() {
  local root_password host=${MYSQL_ROOT_HOST:-%}
  root_password=$(literal "${MYSQL_ROOT_PASSWORD:-}")
  echo "SET @@SESSION.SQL_LOG_BIN=0;"
  echo "ALTER USER 'root'@'localhost' IDENTIFIED BY $root_password;"
  if [ "$host" != localhost ]; then
    echo "CREATE USER 'root'@$(literal "$host") IDENTIFIED BY $root_password;"
    echo "GRANT ALL ON *.* TO 'root'@$(literal "$host") WITH GRANT OPTION;"
  fi
  if [ -n "${MYSQL_DATABASE:-}" ]; then echo "CREATE DATABASE IF NOT EXISTS $(name "$MYSQL_DATABASE");"; fi
  if [ -n "${MYSQL_USER:-}" ]; then
    echo "CREATE USER $(literal "$MYSQL_USER")@'%' IDENTIFIED BY $(literal "${MYSQL_PASSWORD:-}");"
    if [ -n "${MYSQL_DATABASE:-}" ]; then echo "GRANT ALL ON $(name "${MYSQL_DATABASE//_/\\_}").* TO $(literal "$MYSQL_USER")@'%';"; fi
  fi
  echo "FLUSH PRIVILEGES;"
}

run_files() {
  local client=(mysql --no-defaults --protocol=socket --socket="$socket" -uroot --comments) f
  if [ -n "${MYSQL_DATABASE:-}" ]; then client+=(--database="$MYSQL_DATABASE"); fi
  export MYSQL_PWD=${MYSQL_ROOT_PASSWORD:-}
  for f in /docker-entrypoint-initdb.d/*; do
    echo "entrypoint: $f"
    case $f in
      *.sh) if [ -x "$f" ]; then "$f"; else . "$f"; fi ;;
      *.sql) "${client[@]}" <"$f" ;;
      *.sql.gz) gunzip -c "$f" | "${client[@]}" ;;
      *) echo "entrypoint: ignored $f" ;;
    esac
  done
  unset MYSQL_PWD
}

if [ -n "${MYSQL_ROOT_PASSWORD_FILE:-}" ]; then
  MYSQL_ROOT_PASSWORD=$(cat "$MYSQL_ROOT_PASSWORD_FILE")
  export MYSQL_ROOT_PASSWORD
  unset MYSQL_ROOT_PASSWORD_FILE
fi
if [ ! -d "$data/mysql" ]; then
  [ -n "${MYSQL_ROOT_PASSWORD:-}${MYSQL_ALLOW_EMPTY_PASSWORD:-}" ] ||
    die "no way in: set MYSQL_ROOT_PASSWORD or MYSQL_ALLOW_EMPTY_PASSWORD"
  "$@" --initialize-insecure
  init=$(mktemp /var/lib/mysql-files/accounts.XXXXXX)
  accounts >"$init"
  chown mysql: "$init"
  files=(/docker-entrypoint-initdb.d/*)
  if [ ${#files[@]} -eq 0 ]; then
    # One start only: the init file is through before the server listens.
    exec "$@" --init-file="$init"
  fi
  "$@" --init-file="$init" --skip-networking --socket="$socket" &
  server=$!
  until MYSQL_PWD=${MYSQL_ROOT_PASSWORD:-} mysqladmin --no-defaults --protocol=socket --socket="$socket" -uroot ping >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || die "the first start failed"
    sleep 0.1
  done
  run_files
  kill "$server"
  wait "$server" || die "the first start did not end cleanly"
  rm -f "$init"
fi
exec "$@"
