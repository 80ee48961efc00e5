#!/bin/bash
# Ten protocols over loopback, each by its own server and client (`others/*.pcap.zst`). Debian 12: redis-server, postgresql,
# mariadb-server, mosquitto, rabbitmq-server; Maven: org.apache.zookeeper 3.5.9; PyPI: redis, psycopg, pymysql, paho-mqtt, pika,
# grpcio, hypercorn, httpx[http2], kazoo, cassandra-driver.
record() { # name port: what the client says and is told
  tcpdump -i lo -s 0 -U -B 8192 -Z root -w $1.pcap "tcp port $2" & local at=$!; sleep 1
  python clients.py $1; sleep 1; kill -INT $at; wait $at; zstd -19 -q $1.pcap
}
serve() { "$@" & trap "kill $!" EXIT; sleep 10; }
(serve redis-server --port 16379 --save ''; record redis 16379)
(serve hypercorn h2_server:app -b 127.0.0.1:18080; record http 18080)  # HTTP/2 without TLS by h2, and HTTP/1.1
(openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost
 serve hypercorn h2_server:app -b 127.0.0.1:18443 --keyfile k.pem --certfile c.pem; record tls 18443)
record grpc 15051  # its server is in the same process
(serve mosquitto -p 11883; record mqtt 11883)
(RABBITMQ_NODE_PORT=5672 serve rabbitmq-server; record amqp 5672)
(serve postgres -D data -p 15432 -c ssl=off; record postgresql 15432)  # initdb -A trust -D data
(serve mariadbd --no-defaults --datadir=data --port=13306; record mysql 13306)  # mariadb-install-db
(serve java -cp "$ZOOKEEPER" org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg; record zookeeper 12181)
(serve python cql_stub.py; record cassandra 19042)  # the frames of version 4 as its document says, for the real driver
