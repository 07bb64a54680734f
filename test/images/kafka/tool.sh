#!/bin/bash
# The command line tools as the image apache/kafka has them: this file, by each of their names, in /opt/kafka/bin.
set -euo pipefail

case ${0##*/} in
  kafka-topics.sh) class=org.apache.kafka.tools.TopicCommand ;;
  kafka-configs.sh) class=kafka.admin.ConfigCommand ;;
  kafka-features.sh) class=org.apache.kafka.tools.FeatureCommand ;;
  kafka-console-producer.sh) class=org.apache.kafka.tools.ConsoleProducer ;;
  *) echo "no tool of the stand-in: ${0##*/}" >&2; exit 1 ;;
esac
exec java -Xmx256m -Xshare:auto -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=/opt/kafka/defaults/tools-log4j2.properties \
  -cp '/opt/kafka/libs/*' "$class" "$@"
