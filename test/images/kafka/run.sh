#!/bin/bash
# Entry point of the stand-in for the image apache/kafka: the same environment makes the same broker.
#   KAFKA_A_B__C___D=v  becomes  a.b_c-d=v  in server.properties
#   CLUSTER_ID, KAFKA_HEAP_OPTS, KAFKA_OPTS, KAFKA_JVM_PERFORMANCE_OPTS, KAFKA_LOG4J_ROOT_LOGLEVEL as there
# The data live in log.dirs inside the container and survive stop, kill and start.
set -euo pipefail

home=/opt/kafka
props=$home/config/server.properties
not_properties=" KAFKA_VERSION KAFKA_HEAP_OPTS KAFKA_LOG4J_OPTS KAFKA_OPTS KAFKA_JMX_OPTS KAFKA_JVM_PERFORMANCE_OPTS KAFKA_GC_LOG_OPTS KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_LOG4J_LOGGERS KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_JMX_HOSTNAME "

from_environment() {
  local pair name value key
  while IFS= read -r -d '' pair; do
    name=${pair%%=*} value=${pair#*=}
    [[ $name == KAFKA_* && $not_properties != *" $name "* ]] || continue
    key=${name#KAFKA_} key=${key,,} key=${key//_/.} key=${key//.../-} key=${key//../_}
    printf '%s=%s\n' "$key" "$value"
  done < <(env -0 | sort -z)
}

from_environment >"$props"
[ -s "$props" ] || cp "$home/defaults/server.properties" "$props"

# A broker that has run before keeps what is on its disk.
log_dirs=$(sed -n 's/^log\.dirs\{0,1\}=//p' "$props" | tail -n 1)
[ -n "$log_dirs" ] || { log_dirs=/tmp/kafka-logs && echo "log.dirs=$log_dirs" >>"$props"; }
java_opts=(-Dlog4j2.configurationFile="$home/defaults/log4j2.properties" -Djava.awt.headless=true)
if [ ! -f "${log_dirs%%,*}/meta.properties" ]; then
  java "${java_opts[@]}" -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$home/libs/*" kafka.tools.StorageTool \
    format --ignore-formatted --cluster-id "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" --config "$props"
fi

# The variables hold several options each: they are split on purpose.
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:--Xmx1G -Xms1G} ${KAFKA_JVM_PERFORMANCE_OPTS:--server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -Xshare:auto} \
  "${java_opts[@]}" ${KAFKA_OPTS:-} -cp "$home/libs/*" kafka.Kafka "$props"
