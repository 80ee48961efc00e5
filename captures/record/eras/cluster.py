"""Start and stop small Apache Kafka clusters of any release from 0.8.2 on.

Used by the record_*.py scripts.  All on 127.0.0.1: ZooKeeper on 22181,
brokers 1 and 2 on 29091 and 29092, a KRaft controller on 29093 (ERA_SLOT=1
moves them to 22182 and 29094 to 29096).
"""
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRATCH = HERE.parent / "scratch"
CAPTURES = HERE.parents[1]
LIB = SCRATCH / "lib"
SLOT = int(os.environ.get("ERA_SLOT", "0"))  # a second recording may run beside the first with ERA_SLOT=1
ZK_PORT = 22181 + SLOT
HOST = os.environ.get("ERA_HOST", "127.0.0.1")    # where brokers listen
NETNS = os.environ.get("ERA_NETNS")               # where clients run, if elsewhere
DATA = Path(f"/var/tmp/kafka-era{SLOT or ''}")  # shows in DescribeLogDirs answers; wiped at each start
PORTS = {1: 29091 + 3 * SLOT, 2: 29092 + 3 * SLOT, 100: 29093 + 3 * SLOT}

OPENS = []
for pkg in ("java.lang", "java.nio", "java.util", "java.util.concurrent", "java.net", "sun.nio.ch"):
    OPENS += ["--add-opens", f"java.base/{pkg}=ALL-UNNAMED"]


def vt(version):
    return tuple(int(x) for x in version.split("."))


def classpath(version, extra=()):
    return ":".join([*map(str, extra), str(LIB / version) + "/*"])


def wait_port(port, timeout=60, proc=None):
    end = time.time() + timeout
    while time.time() < end:
        if proc is not None and proc.poll() is not None:
            raise RuntimeError(f"process ended with {proc.returncode}")
        with socket.socket() as s:
            s.settimeout(1)
            if s.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.3)
    raise RuntimeError(f"port {port} did not open")


def wait_text(path, text, timeout=90, proc=None, start=0):
    end = time.time() + timeout
    while time.time() < end:
        if path.exists():
            with open(path, errors="replace") as f:
                f.seek(start)
                if text in f.read():
                    return
        if proc is not None and proc.poll() is not None:
            raise RuntimeError(f"process ended with {proc.returncode}; see {path}")
        time.sleep(0.3)
    raise RuntimeError(f"{text!r} not seen in {path}")


class Cluster:
    def __init__(self, version, name, kraft=False, props=None):
        self.version = version
        self.v = vt(version)
        self.kraft = kraft
        self.props = props or {}
        self.dir = SCRATCH / "run" / name
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        shutil.rmtree(DATA, ignore_errors=True)
        DATA.mkdir()
        self.procs = {}

    # -- processes -----------------------------------------------------
    def _java(self, key, main, args, heap="320m", log4j=None):
        out = self.dir / f"{key}.out"
        cmd = ["java", f"-Xmx{heap}", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *OPENS,
               "-Djava.net.preferIPv4Stack=true", "-Dzookeeper.jmx.log4j.disable=true"]
        if log4j:
            cmd.append(f"-Dlog4j.configuration=file:{log4j}")
        cmd += ["-cp", classpath(self.version), main, *map(str, args)]
        with open(out, "a") as f:
            p = subprocess.Popen(cmd, stdout=f, stderr=subprocess.STDOUT, cwd=self.dir)
        self.procs[key] = p
        return p

    def _log4j(self, key):
        path = self.dir / f"{key}.log4j.properties"
        path.write_text(f"""log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={self.dir}/{key}.log
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.appender.req=org.apache.log4j.FileAppender
log4j.appender.req.File={self.dir}/{key}.requests.log
log4j.appender.req.layout=org.apache.log4j.PatternLayout
log4j.appender.req.layout.ConversionPattern=[%d{{yyyy-MM-dd HH:mm:ss,SSS}}] {key} %p %m (%c)%n
log4j.logger.kafka.request.logger=TRACE, req
log4j.additivity.kafka.request.logger=false
log4j.logger.org.apache.zookeeper=WARN
log4j.logger.kafka.network.RequestChannel$=WARN
""")
        return path

    def start_zk(self):
        cfg = self.dir / "zoo.cfg"
        cfg.write_text(f"""dataDir={self.dir}/zk
clientPort={ZK_PORT}
clientPortAddress={HOST}
maxClientCnxns=0
tickTime=1000
admin.enableServer=false
4lw.commands.whitelist=*
""")
        p = self._java("zk", "org.apache.zookeeper.server.quorum.QuorumPeerMain", [cfg],
                       heap="128m", log4j=self._log4j("zk"))
        wait_port(ZK_PORT, proc=p)

    def server_props(self, n):
        v = self.v
        port = PORTS[n]
        d = {
            "num.partitions": 2, "default.replication.factor": 2,
            "log.dirs": f"{DATA}/{n}a,{DATA}/{n}b",
            "num.network.threads": 2, "num.io.threads": 4,
            "offsets.topic.replication.factor": 2, "offsets.topic.num.partitions": 3,
            "log.cleaner.dedupe.buffer.size": 4 << 20, "log.segment.bytes": 16 << 20,
            "auto.leader.rebalance.enable": "false", "controlled.shutdown.enable": "true",
            "replica.fetch.wait.max.ms": 1000,
            "num.recovery.threads.per.data.dir": 1,
        }
        if v < (1,):
            d["delete.topic.enable"] = "true"
        if v >= (0, 11):
            d |= {"transaction.state.log.replication.factor": 2, "transaction.state.log.min.isr": 1,
                  "transaction.state.log.num.partitions": 2, "group.initial.rebalance.delay.ms": 200}
        if self.kraft:
            d |= {"node.id": n, "controller.quorum.voters": f"100@127.0.0.1:{PORTS[100]}",
                  "controller.listener.names": "CONTROLLER",
                  "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                  "process.roles": "controller" if n == 100 else "broker",
                  "listeners": f"CONTROLLER://127.0.0.1:{port}" if n == 100 else f"PLAINTEXT://{HOST}:{port}",
                  "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                  "super.users": "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true"}
        else:
            d |= {"broker.id": n, "zookeeper.connect": f"{HOST}:{ZK_PORT}"}
            if v < (0, 9):
                d |= {"port": port, "host.name": HOST, "zookeeper.connection.timeout.ms": 15000}
            else:
                d["listeners"] = f"PLAINTEXT://{HOST}:{port}"
                cls = "kafka.security.authorizer.AclAuthorizer" if v >= (2, 4) else "kafka.security.auth.SimpleAclAuthorizer"
                d |= {"authorizer.class.name": cls, "super.users": "User:ANONYMOUS",
                      "allow.everyone.if.no.acl.found": "true"}
        d |= self.props
        return d

    def format_storage(self, nodes=(100, 1, 2)):
        for n in nodes:
            cfg = self._write_props(n)
            subprocess.run(["java", "-cp", classpath(self.version), "kafka.tools.StorageTool", "format",
                            "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(cfg)],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _write_props(self, n):
        cfg = self.dir / f"server{n}.properties"
        cfg.write_text("".join(f"{k}={x}\n" for k, x in self.server_props(n).items()))
        for x in str(self.server_props(n)["log.dirs"]).split(","):
            Path(x).mkdir(exist_ok=True)
        return cfg

    def start_broker(self, n, wait=True):
        key = f"broker{n}"
        cfg = self._write_props(n)
        log = self.dir / f"{key}.log"
        at = log.stat().st_size if log.exists() else 0
        p = self._java(key, "kafka.Kafka", [cfg], heap="384m", log4j=self._log4j(key))
        if wait:
            wait_text(log, "Kafka Server started (kafka.server.Kafka" if self.kraft else "started (kafka.server.Kafka",
                      proc=p, start=at)
        return p

    def stop(self, key, sig=signal.SIGTERM, timeout=30):
        p = self.procs.pop(key, None)
        if p is None or p.poll() is not None:
            return
        p.send_signal(sig)
        try:
            p.wait(timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()

    def stop_all(self):
        for key in [k for k in self.procs if k != "zk"]:
            self.procs[key].send_signal(signal.SIGKILL)
        for key in list(self.procs):
            self.stop(key, signal.SIGKILL)

    def requests_log(self):
        """Request-log lines of all nodes, in time order."""
        lines = []
        for f in sorted(self.dir.glob("broker*.requests.log")):
            cur = None
            for line in open(f, errors="replace"):
                line = line.rstrip("\n")
                if line.startswith("[2"):
                    cur = [line]
                    lines.append(cur)
                elif cur is not None:
                    cur.append(line)
        lines.sort(key=lambda c: c[0][1:24])
        return ["\\n".join(c) for c in lines]


class Capture:
    def __init__(self, name, ports=(29091, 29092), dev="lo", netns=None):
        CAPTURES.mkdir(exist_ok=True)
        self.name = name
        self.file = CAPTURES / f"{name}.pcap"
        self.expr = "tcp and (" + " or ".join(f"port {p}" for p in ports) + ")"
        self.cmd = ["tcpdump", "-i", dev, "-s", "0", "-B", "65536", "-U", "-w", str(self.file), self.expr]
        if netns:
            self.cmd = ["ip", "netns", "exec", netns, *self.cmd]
        self.err = SCRATCH / f"{name}.tcpdump.err"
        self.p = subprocess.Popen(self.cmd, stderr=open(self.err, "w"))
        wait_text(self.err, "listening on", proc=self.p)
        self.started = time.time()

    def stop(self):
        time.sleep(1)
        self.p.send_signal(signal.SIGINT)
        self.p.wait()
        self.ended = time.time()
        err = self.err.read_text()
        assert "\n0 packets dropped by kernel" in err, err
        return err
