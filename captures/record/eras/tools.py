"""Runs the Java clients of a release."""
import subprocess
from cluster import NETNS, SCRATCH, classpath


def java(version, classes, main, *args, timeout=120):
    r = subprocess.run([*(["ip", "netns", "exec", NETNS] if NETNS else []), "java", "-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
                        "--add-opens", "java.base/java.nio=ALL-UNNAMED", "-cp", classpath(version, [SCRATCH / "quiet", *classes]), main, *map(str, args)],
                       capture_output=True, text=True, timeout=timeout)
    facts = [x[5:] for x in r.stdout.splitlines() if x.startswith("FACT ")]
    for f in facts:
        print("   ", f, flush=True)
    if r.returncode or (main.startswith("Era") and not facts):
        print("   ", main, args, "rc", r.returncode, r.stdout[-600:], r.stderr[-2500:], flush=True)
    return facts


def quiet():
    d = SCRATCH / "quiet"
    d.mkdir(exist_ok=True)
    (d / "log4j.properties").write_text("log4j.rootLogger=ERROR, e\nlog4j.appender.e=org.apache.log4j.ConsoleAppender\n"
                                        "log4j.appender.e.target=System.err\nlog4j.appender.e.layout=org.apache.log4j.SimpleLayout\n")
