#!/bin/bash
# record_all.sh: these captures, in the order of recording. Read README.md first; run as root from the folder above (record/).
set -eu
export SCRATCH=$PWD/scratch PYTHONPATH=$PWD/clients/raw
R="python3 clients/rec.py"; PY=$PWD/scratch/venv/bin/python; OLD=$PWD/scratch/venv202/bin/python; B=127.0.0.1:39091; C=127.0.0.1:39093
DATA=/var/lib/kafka-rec clients/broker.sh start b42 4.2.0 clients/broker42.properties
clients/broker.sh start b39 3.9.1 clients/broker39.properties --add-scram 'SCRAM-SHA-256=[name=bob,password=bob-test]'
scratch/zoo franz $B warm > /dev/null; $PY clients/clients/aio.py $B warm2 > /dev/null   # so that the coordinators are loaded
$R zoo_franz_go --truth b42 -- scratch/zoo franz $B zoo-franz
$R zoo_franz_go_txn --truth b42 -- scratch/zoo franz-txn $B zoo-franz-txn
$R zoo_sarama --truth b42 -- scratch/zoo sarama $B zoo-sarama
$R zoo_kafka_go --truth b42 -- scratch/zoo kafka-go $B zoo-kafka-go
$R zoo_kafkajs --truth b42 -- node scratch/nodezoo/kafkajs.js $B zoo-kafkajs
$R zoo_platformatic --truth b42 -- node scratch/nodezoo/platformatic.mjs $B zoo-platformatic2
$R zoo_kcat --truth b42 -- clients/clients/kcat.sh $B zoo-kcat
$R zoo_librdkafka --truth b42 -- $PY clients/clients/confluent.py $B zoo-librdkafka classic
$R zoo_librdkafka_848 --truth b42 -- $PY clients/clients/confluent.py $B zoo-librdkafka-848 consumer
$R zoo_aiokafka --truth b42 -- $PY clients/clients/aio.py $B zoo-aiokafka
$R zoo_kafka_python --truth b42 -- $PY clients/clients/old_kafka_python.py $B zoo-kafka-python-b
$R zoo_kafkajs_39 --ports 39093 --truth b39 -- node scratch/nodezoo/kafkajs.js $C zoo-kafkajs
$R zoo_kafka_python_202 --ports 39093 --truth b39 -- $OLD clients/clients/old_kafka_python.py $C zoo-kp202
$R zoo_sarama_010 --ports 39093 --truth b39 -- scratch/zoo sarama-0.10 $C zoo-sarama-010
$R zoo_kafka_python_0102 --ports 39093 --truth b39 -- $OLD clients/clients/old_kafka_python.py $C zoo-kp010 0.10.1
for w in logins old fail reauth; do $R sasl_$w --ports 39094,39097 --truth b39 -- clients/sasl_all.sh $PY $OLD scratch/zoo $w; done
rm -f ../*.keys.log
$R tls12 --ports 39095 --truth b39 -- $PY clients/clients/tls.py 39095 1.2 ../tls12.keys.log scratch/tls/server.pem tls12 ECDHE-RSA-AES128-GCM-SHA256
$R tls13 --ports 39095 --truth b39 -- $PY clients/clients/tls.py 39095 1.3 ../tls13.keys.log scratch/tls/server.pem tls13
$R mixups --ports 39093,39095 --truth b39 -- $PY clients/raw/mixups.py 39093 39095
$PY clients/raw/tcp.py 39091 setup
for s in ids cuts errors acks0; do $R raw_$s --truth b42 -- $PY clients/raw/$s.py 39091; done
for s in kill reuse keepalive zerowindow; do $R raw_$s --truth b42 -- $PY clients/raw/tcp.py 39091 $s; done
$R raw_ipv6 --truth b42 -- bash -c "$PY clients/raw/tcp.py 39091 v6; kcat -C -b '[::1]:39091' -t raw-tcp-v6 -o beginning -e -q | wc -c"
$PY -c 'from kraw import *; print(len(Conn(39091, timeout=60).ask(create_topics(1, "raw-setup", [("raw-many", 3000)]))))'
sleep 40   # the broker makes 3000 logs
$R raw_sessions --truth b42 -- $PY clients/raw/sessions.py 39091 3000
clients/broker.sh stop b42; clients/broker.sh stop b39

clients/netns.sh up
NS=recs clients/broker.sh start base 4.2.0 clients/basebroker.properties
ip netns exec recc $PY clients/clients/base.py fill 192.0.2.1:39098
mkdir -p scratch/any; F='tcp and port 39098'
ip netns exec recc tcpdump -i any -y LINUX_SLL -s 0 -B 16384 -Z root -w scratch/any/sll.pcap "$F" & T1=$!
ip netns exec recc tcpdump -i any -y LINUX_SLL2 -s 0 -B 16384 -Z root -w scratch/any/sll2.pcap "$F" & T2=$!
ip netns exec recc tcpdump -i vc -s 0 -B 16384 -Z root -G 3 -w 'scratch/any/rotated-%Y%m%d-%H%M%S.pcap' "$F" & T3=$!
sleep 1
$R base --ports 39098 --iface vc --ns recc --truth base -- ip netns exec recc $PY clients/clients/base.py run 192.0.2.1:39098
kill -INT $T1 $T2 $T3
$R ipv6_veth --ports 39098 --iface vc --ns recc --truth base -- ip netns exec recc $PY clients/clients/base.py run '[2001:db8::1]:39098' v6-group 60
clients/netns.sh lossy
ip netns exec recm python3 clients/lossy_bridge.py m1 m2 5 45 & sleep 1
ip netns exec recs tcpdump -i ls -s 0 -B 16384 -Z root -w ../lossy_broker_side.pcap "$F" & T4=$!
sleep 1
$R lossy_client_side --ports 39098 --iface lc --ns recc --truth base --limit 40 -- ip netns exec recc $PY clients/clients/base.py run 192.0.2.1:39098 lossy-group 240
kill -INT $T4; cp ../lossy_client_side.requests.log.zst ../lossy_broker_side.requests.log.zst
wait; clients/broker.sh stop base; clients/netns.sh down

ip netns add recx; ip -n recx link set lo up
$R not_kafka --filter tcp --ns recx -- ip netns exec recx python3 clients/mix.py scratch/tls/server.pem scratch/tls/server.key
cp scratch/out/not_kafka.txt ../not_kafka.connections.json; ip netns del recx
cd clients; python3 oracle.py base 39098; python3 derive.py; for n in base_short base_tiny; do python3 oracle.py $n 39098; done; python3 finish.py
