#!/bin/bash
# rec.sh NAME 'tcpdump filter' command...   - record one capture (NAME.pcap) and its truth log around a command.
# environment: IFACE (lo), TCPNS ("ip netns exec X" to run tcpdump in), SNAP (0), RUN (../run), SDIR
RUN=${RUN:-../run}; CAP=../..; NAME=$1; FILTER=$2; shift 2; IFACE=${IFACE:-lo}
mkdir -p $CAP; declare -A off
for n in 1 2 3; do off[$n]=$(stat -c %s $RUN/node$n/requests.log 2>/dev/null || echo 0); done
$TCPNS tcpdump -i $IFACE -s ${SNAP:-0} -B 65536 -U -w $CAP/$NAME.pcap "$FILTER" 2> $RUN/$NAME.tcpdump & T=$!
for i in $(seq 100); do grep -q "listening on" $RUN/$NAME.tcpdump && break; sleep 0.1; done; sleep 0.3
"$@" > $RUN/$NAME.out 2>&1; echo "rc $?"
sleep 1; kill -INT $T; wait $T; grep -E "captured|dropped" $RUN/$NAME.tcpdump
sleep 0.7
for n in 1 2 3; do tail -c +$((off[$n]+1)) $RUN/node$n/requests.log 2>/dev/null; done | grep '^\[.*}$' | sort -s -k1,2 > $RUN/$NAME.requests.log
if [ -n "$PORTS" ]; then grep -E "\"connection\":\"[0-9.]*:($PORTS)-" $RUN/$NAME.requests.log > $RUN/$NAME.x; mv $RUN/$NAME.x $RUN/$NAME.requests.log; fi
zstd -19 -q -f $RUN/$NAME.requests.log -o $CAP/$NAME.requests.log.zst
ls -l $CAP/$NAME.* | awk '{print $5,$9}'; python3 wirecount.py $CAP/$NAME.pcap $CAP/$NAME.requests.log.zst | tee $RUN/$NAME.wire
