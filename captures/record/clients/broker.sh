#!/bin/bash
# broker.sh start NAME VERSION PROPERTIES [storage-format extra arguments...]
# broker.sh stop NAME
# Runs one KRaft broker (combined roles) from jars in $SCRATCH/jars-VERSION. State, logs and pid lie in $SCRATCH/brokers/NAME.
# NS=netns runs it inside a network namespace. DATA=folder keeps its logs elsewhere (their paths show in DescribeLogDirs).
set -eu
HERE=$(cd "$(dirname "$0")" && pwd); SCRATCH=${SCRATCH:-$HERE/../scratch}; CMD=$1; NAME=$2; DIR=$SCRATCH/brokers/$NAME
RUN=""; [ -n "${NS:-}" ] && RUN="ip netns exec $NS"
case $CMD in
start)
  VERSION=$3; PROPS=$4; shift 4
  DATA=${DATA:-$DIR/data}; rm -rf "$DIR" "$DATA"; mkdir -p "$DATA" "$DIR/logs"
  cp "$PROPS" "$DIR/server.properties"; echo "log.dirs=$DATA" >> "$DIR/server.properties"
  sed -i "s#@DIR@#$DIR#g; s#@SCRATCH@#$SCRATCH#g" "$DIR/server.properties"
  if [ "${VERSION%%.*}" -ge 4 ]; then LOGOPT="-Dlog4j2.configurationFile=$HERE/log4j2.properties"; else LOGOPT="-Dlog4j.configuration=file:$HERE/log4j.properties"; fi
  CP="$SCRATCH/jars-$VERSION/*"
  java -Xmx200m $LOGOPT -Drec.logs="$DIR/logs" -cp "$CP" kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qk -c "$DIR/server.properties" "$@" > "$DIR/format.out" 2>&1
  $RUN setsid java -Xmx400m -XX:+UseSerialGC $LOGOPT -Drec.logs="$DIR/logs" -cp "$CP" kafka.Kafka "$DIR/server.properties" > "$DIR/stdout" 2>&1 < /dev/null &
  echo $! > "$DIR/pid"
  for i in $(seq 60); do grep -q 'Kafka Server started\|started (kafka.server.KafkaRaftServer)' "$DIR/logs/server.log" 2>/dev/null && { echo "$NAME up, pid $(cat "$DIR/pid")"; exit 0; }; sleep 1; done
  echo "$NAME did not start"; tail -5 "$DIR/stdout"; exit 1;;
stop)
  kill "$(cat "$DIR/pid")" 2>/dev/null || true;;
esac
