#!/bin/sh
# get_release.sh KAFKA_VERSION SCALA_VERSION  -> ../scratch/lib/KAFKA_VERSION/*.jar
# Broker, its ZooKeeper, its own Java client, and a log4j 1.2 compatible logger.
set -e
v=$1; s=$2
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../scratch/lib/$v
[ -f "$out/.done" ] && exit 0
mkdir -p "$out"
tmp=$(mktemp -d)
extra=""
# the ZooKeeper client 3.4.13 and 3.4.14 does not work on Java 14 and later (it takes
# "host/<unresolved>" for the host): 2.0 to 2.3 get 3.4.12; 0.x needs javax.xml.bind
case $v in 2.[0-3].*) extra="<dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>3.4.12</version><exclusions><exclusion><groupId>log4j</groupId><artifactId>log4j</artifactId></exclusion><exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-log4j12</artifactId></exclusion></exclusions></dependency>";;
0.*) extra="<dependency><groupId>javax.xml.bind</groupId><artifactId>jaxb-api</artifactId><version>2.3.1</version></dependency>";;
2.[4-9]*|3.*) extra="<dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version></dependency>";; esac
cat > "$tmp/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_$s</artifactId><version>$v</version>
<exclusions><exclusion><groupId>log4j</groupId><artifactId>log4j</artifactId></exclusion>
<exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-log4j12</artifactId></exclusion>
<exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId></exclusion>
<exclusion><groupId>ch.qos.logback</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
$extra
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
POM
mvn -q -B -f "$tmp/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$out"
rm -rf "$tmp"
touch "$out/.done"
