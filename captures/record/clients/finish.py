"""finish.py: writes NAME.toml for every capture: meta.py's words, and what can be counted."""
import hashlib, json, re, struct, subprocess, sys
from collections import Counter
from pathlib import Path
import pcapfile as P
from meta import META

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
OUT, SCRATCH = TOP.parent, TOP / "scratch"
NAMES = {17: "SaslHandshake", 36: "SaslAuthenticate"}


def camel(name):
    return "".join(x.capitalize() for x in name.split("_"))


def truth(name):
    path = OUT / f"{name}.requests.log.zst"
    if not path.exists():
        return None
    count = Counter()
    text = subprocess.run(["zstd", "-dcq", str(path)], capture_output=True).stdout.decode("utf-8", "replace")
    for raw in text.splitlines():
        m = re.search(r'"requestHeader":\{"requestApiKey":(-?\d+),"requestApiVersion":(\d+).*?"requestApiKeyName":"(\w+)"', raw)
        if m:
            NAMES[int(m.group(1))] = camel(m.group(3))
            count[(int(m.group(1)), int(m.group(2)))] += 1
    return count


def wire(path, ports):
    """requests counted by this folder's own frame counter"""
    try:
        link, packets = P.read(path)
        count, left, rest = Counter(), 0, 0
        for (_, src, dst), data in P.streams(packets, link).items():
            if dst[1] not in ports:
                continue
            whole, over = P.frames(data)
            rest += over
            for f in whole:
                if len(f) >= 8:
                    key, version = struct.unpack(">hh", f[:4])
                    if 0 <= key < 100 and version < 100:
                        count[(key, version)] += 1
                    else:
                        left += 1
                else:
                    left += 1
        return count, left, rest
    except (KeyError, struct.error, IndexError):
        return None


def quote(text):
    return json.dumps(text, ensure_ascii=False)


def info(path):
    said = subprocess.run(["capinfos", "-T", "-r", "-c", "-E", "-M", str(path)], capture_output=True, text=True).stdout.strip().splitlines()
    if not said or "\t" not in said[-1]:
        return None, None
    _, link, packets = said[-1].split("\t")[:3]
    return link, int(packets)


LINKS = {"ether": "EN10MB", "linux-sll": "LINUX_SLL", "linux-sll2": "LINUX_SLL2", "null": "NULL", "loop": "LOOP", "rawip": "RAW", "rawip4": "IPV4", "per-packet": "per interface"}


def main():
    derived = json.loads((SCRATCH / "derived.json").read_text())
    for name in META:
        truth(name)
    names = list(META) + [n for n in derived if n not in META]
    for name in names:
        m = META.get(name) or derived[name]
        files = [OUT / f for f in m.get("files", [name + ".pcap"])]
        links = [info(f) for f in files]
        link = next((LINKS.get(a, a) for a, _ in links if a), "none")
        if name == "field_empty":
            link = "none"
        packets = m.get("packets", sum(n or 0 for _, n in links))
        link = m.get("link", link)
        lines = [f"title = {quote(m['title'])}"]
        made = m["made"]
        run = SCRATCH / "out" / f"{name}.json"
        if name in META and run.exists():
            made += ". Recorded with " + json.loads(run.read_text())["tcpdump"] + "; 0 packets dropped by the kernel"
            assert json.loads(run.read_text())["dropped"] == 0
        if name in derived:
            made = "derived by derive.py: " + made
        lines.append(f"made = {quote(made)}")
        brokers = m.get("brokers") or ["Apache Kafka 4.2.0 (KRaft)"]
        clients = m.get("clients") or ["kafka-python 3.0.12"]
        if name == "not_kafka":
            brokers = []
        if name == "tls13_dsb":
            brokers = ["Apache Kafka 3.9.1 (KRaft)"]
        lines.append("brokers = [" + ", ".join(map(quote, brokers)) + "]")
        lines.append("clients = [" + ", ".join(map(quote, clients)) + "]")
        lines.append(f"link_type = {quote(link)}")
        lines.append(f"packets = {packets}")
        if len(files) == 1:
            lines.append(f"sha256 = {quote(hashlib.sha256(files[0].read_bytes()).hexdigest())}")
        else:
            lines.append("files = [" + ", ".join(quote(str(f.relative_to(OUT))) for f in files) + "]")
            lines.append("sha256 = [" + ", ".join(quote(hashlib.sha256(f.read_bytes()).hexdigest()) for f in files) + "]")
        lines.append("captured_at = 2026-11-21")
        expect = list(m["expect"])
        lines.append("expect = [")
        lines += [f"  {quote(x)}," for x in expect]
        lines.append("]")
        lines.append("[shows]")
        t = truth(name)
        shows = Counter()
        ports = m.get("ports", {39098, 39091, 39093, 39094, 39097})
        w = wire(files[0], ports) if (name in META or name in ("base_short", "base_tiny")) and len(files) == 1 and files[0].suffix == ".pcap" and not m.get("no_wire") else None
        if t:
            shows.update(t)
        if w:
            shows = Counter({k: n for k, n in w[0].items()})
            t = t or Counter()
            differ = {(NAMES.get(k[0], k[0]), k[1]): (w[0][k], t[k]) for k in set(w[0]) | set(t) if w[0][k] != t[k]}
            if differ or w[1] or w[2]:
                print(name, "wire and truth differ:", differ, "other frames", w[1], "bytes over", w[2])
        for (key, version), n in sorted(shows.items()):
            lines.append(f"{quote(NAMES.get(key, str(key)) + f' v{version} request')} = {n}")
        for k, v in m.get("shows", {}).items():
            lines.append(f"{quote(k)} = {v}")
        (OUT / f"{name}.toml").write_text("\n".join(lines) + "\n")
        if "-v" in sys.argv and name in META:
            print("==", name, packets, files[0].stat().st_size, dict((NAMES.get(k, str(k)) + f" v{v}", n) for (k, v), n in sorted(shows.items())))


main()
