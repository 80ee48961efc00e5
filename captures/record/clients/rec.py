#!/usr/bin/env python3
"""rec.py NAME [--ports 39091,...] [--filter BPF] [--iface lo] [--ns NETNS] [--truth BROKER,...] [--limit S] -- COMMAND...

Records COMMAND's traffic into NAME.pcap, keeps what it printed in scratch/out/NAME.txt, and cuts the broker's own
request log to the lines that the broker finished meanwhile on these ports (NAME.requests.log.zst).
"""
import argparse, json, os, re, signal, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
SCRATCH = Path(os.environ.get("SCRATCH", TOP / "scratch"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("name")
    p.add_argument("--ports", default="39091")
    p.add_argument("--filter")
    p.add_argument("--iface", default="lo")
    p.add_argument("--ns")
    p.add_argument("--truth", default="")
    p.add_argument("--limit", type=float, default=150)
    p.add_argument("--extra", default="", help="more tcpdump options, space separated")
    at = sys.argv.index("--")
    a = p.parse_args(sys.argv[1:at])
    command = sys.argv[at + 1:]
    ports = a.ports.split(",")
    bpf = a.filter or "tcp and (" + " or ".join(f"port {x}" for x in ports) + ")"
    out = SCRATCH / "out"
    out.mkdir(exist_ok=True)
    captures = TOP.parent
    captures.mkdir(exist_ok=True)
    pcap = captures / f"{a.name}.pcap"
    pcap.unlink(missing_ok=True)
    logs = {b: SCRATCH / "brokers" / b / "logs" / "requests.log" for b in a.truth.split(",") if b}
    offsets = {b: path.stat().st_size for b, path in logs.items()}
    ns = ["ip", "netns", "exec", a.ns] if a.ns else []
    dump = ["tcpdump", "-i", a.iface, "-s", "0", "-B", "65536", "-Z", "root", *a.extra.split(), "-w", str(pcap), bpf]
    td = subprocess.Popen(ns + dump, stderr=subprocess.PIPE, text=True)
    line = ""
    while "listening on" not in line:
        line = td.stderr.readline()
        if not line:
            sys.exit("tcpdump did not start")
    time.sleep(0.3)
    with open(out / f"{a.name}.txt", "wb") as sink:
        worker = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            rc = worker.wait(a.limit)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            rc = "timeout"
    time.sleep(1.2)
    td.send_signal(signal.SIGINT)
    said = td.communicate()[1]
    truth_lines = []
    for b, path in logs.items():
        with open(path, "rb") as f:
            f.seek(offsets[b])
            for raw in f.read().decode("utf-8", "replace").splitlines():
                m = re.search(r'"connection":"([^"]*?):(\d+)-', raw)
                if m and m.group(2) in ports:
                    truth_lines.append(raw)
    if logs:
        text = "\n".join(truth_lines) + "\n"
        subprocess.run(["zstd", "-19", "-q", "-f", "-o", str(captures / f"{a.name}.requests.log.zst")], input=text.encode(), check=True)
    dropped = re.search(r"(\d+) packets? dropped by kernel", said)
    shown = " ".join(dump[:-3]) + f" -w {pcap.name} '{bpf}'"
    (out / f"{a.name}.json").write_text(json.dumps({"tcpdump": shown, "rc": rc, "dropped": dropped and int(dropped.group(1)), "truth_lines": len(truth_lines)}))
    print(a.name, "rc", rc, "bytes", pcap.stat().st_size, "dropped", dropped and dropped.group(1), "truth lines", len(truth_lines))


main()
