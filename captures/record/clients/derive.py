"""derive.py: makes the field shapes out of base.pcap (and the live -i any and -G files in scratch/any). Deterministic."""
import gzip, json, os, random, shutil, struct, subprocess
from pathlib import Path
import pcapfile as P

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1]
ANY = HERE.parent / "scratch" / "any"
link, base = P.read(OUT / "base.pcap")
notes = {}   # name -> (title, made, expect, files)


def note(name, title, made, *expect, files=None):
    notes[name] = dict(title=title, made=made, expect=list(expect), files=files or [name + ".pcap"])


exchanges = [json.loads(x) for x in subprocess.run(["zstd", "-dcq", str(OUT / "base.exchanges.jsonl.zst")], capture_output=True, text=True, check=True).stdout.splitlines()]


def touched(gone):
    """-> how many of base's exchanges lost bytes of their request, of their response, and of neither, with these frames"""
    hit = {}
    for i in gone:
        t = P.tcp(base[i - 1][3])
        if t and t[4]:
            key = (t[1][1], "response") if t[0][1] == 39098 else (t[0][1], "request")
            hit.setdefault(key, []).append(i)
    bad = {which: [any(r[which]["first_frame"] <= i <= r[which]["last_frame"] for i in hit.get((r["client_port"], which), ())) for r in exchanges] for which in ("request", "response")}
    return sum(bad["request"]), sum(bad["response"]), sum(not (a or b) for a, b in zip(bad["request"], bad["response"]))


def hurt(gone):
    a, b, c = touched(gone)
    return f"of base's 176 exchanges {a} lost bytes of their request, {b} lost bytes of their response, {c} are whole"


def prefix(limit):
    size, n = 24, 0
    for p in base:
        size += 16 + len(p[3])
        if size > limit:
            break
        n += 1
    return base[:n]


short, tiny = prefix(140_000), prefix(60_000)
SAME = f"the same answer as the first {len(short)} packets of base (base_short)"
TINY = f"the same answer as the first {len(tiny)} packets of base (base_tiny)"
P.write(OUT / "base_short.pcap", short)
note("base_short", f"The first {len(short)} packets of base", f"the first {len(short)} packets of base.pcap", "nothing is missing before its end; it ends in the middle of the traffic")
P.write(OUT / "base_tiny.pcap", tiny)
note("base_tiny", f"The first {len(tiny)} packets of base", f"the first {len(tiny)} packets of base.pcap", "nothing is missing before its end; it ends in the middle of the traffic")

# --- what was cut away
for n in (96, 200):
    P.write(OUT / f"field_snap{n}.pcap", [(s, ns, o, d[:n]) for s, ns, o, d in base], snaplen=n)
    note(f"field_snap{n}", f"base with a snap length of {n}", f"every packet of base.pcap cut to {n} bytes, original lengths kept, snap length {n} in the file header",
         "sizes, pairing and latencies of every exchange are those of base; bodies beyond the cut are partial", f"{sum(len(p[3]) > n for p in base)} of {len(base)} packets are cut")
cut = round(len(base) * 0.3)
P.write(OUT / "field_midstream.pcap", base[cut:])
note("field_midstream", "base without its first 30 % of packets: no SYNs, starts inside conversations", f"packets 1..{cut} of base.pcap removed", f"its frame n is frame n + {cut} of base", hurt(range(1, cut + 1)), "every exchange whose request and response both lie after the cut is as in base; responses whose request lies before it are orphans")
bursts = [i for i in range(300, len(base) - 1) if len(base[i][3]) == 1514 and len(base[i - 1][3]) == 1514 and len(base[i + 1][3]) == 1514]
end = bursts[len(bursts) * 2 // 3]
P.write(OUT / "field_endmid.pcap", base[:end + 1])
note("field_endmid", "base up to the middle of a Fetch response", f"the first {end + 1} packets of base.pcap", hurt(range(end + 2, len(base) + 1)), "the last captured response, on client port 40402, is incomplete: 11653 of its 32879 bytes were captured")

rnd = random.Random(11)
for pct in (1, 5):
    gone = sorted(rnd.sample(range(1, len(base) + 1), round(len(base) * pct / 100)))
    P.write(OUT / f"field_loss{pct}.pcap", [p for i, p in enumerate(base, 1) if i not in set(gone)])
    (OUT / f"field_loss{pct}.removed.json").write_text(json.dumps({"of": "base.pcap", "removed_frames": gone}) + "\n")
    carrying = sum(1 for i in gone if (P.tcp(base[i - 1][3]) or [b""])[-1])
    note(f"field_loss{pct}", f"base with {pct} % of its packets missing at random (lost by the capture, not by TCP)", "frames of base.pcap drawn at random; removed_frames in the JSON beside it count base's frames from 1",
         f"{len(gone)} packets are missing, {carrying} of them carried data", hurt(gone), "exchanges none of whose bytes were in a removed packet are as in base")
first = bursts[len(bursts) // 3] - 4
gone = list(range(first + 1, first + 21))
P.write(OUT / "field_burst20.pcap", base[:first] + base[first + 20:])
(OUT / "field_burst20.removed.json").write_text(json.dumps({"of": "base.pcap", "removed_frames": gone}) + "\n")
note("field_burst20", "base with one burst of 20 packets missing inside one Fetch response (no length prefix is lost)", f"frames {gone[0]}..{gone[-1]} of base.pcap removed (see the JSON beside it)", "exchanges none of whose bytes were in a removed packet are as in base", f"{sum(len((P.tcp(base[i - 1][3]) or [b''])[-1]) for i in gone)} bytes of TCP payload are missing", hurt(gone))

many = max(range(1, len(base) - 20), key=lambda n: (min(touched(range(n, n + 20))[:2]), sum(touched(range(n, n + 20))[:2]), -n))
gone = list(range(many, many + 20))
P.write(OUT / "field_burst20_many.pcap", base[:many - 1] + base[many + 19:])
(OUT / "field_burst20_many.removed.json").write_text(json.dumps({"of": "base.pcap", "removed_frames": gone}) + "\n")
note("field_burst20_many", "base with one burst of 20 packets missing where they held many small frames, length prefixes among them", f"frames {gone[0]}..{gone[-1]} of base.pcap removed (see the JSON beside it)", hurt(gone), "whole requests and responses are missing, so are length prefixes")


def to_broker(p):
    t = P.tcp(p[3])
    return t[1][1] == 39098


P.write(OUT / "field_to_client.pcap", [p for p in base if not to_broker(p)])
note("field_to_client", "base, the direction from the broker only", "the packets of base.pcap with source port 39098", "176 responses, every one an orphan: no request was captured")
P.write(OUT / "field_to_broker.pcap", [p for p in base if to_broker(p)])
note("field_to_broker", "base, the direction to the broker only", "the packets of base.pcap with destination port 39098", "176 requests, none with a response: that direction was not captured")

# --- order and time
def later(p, ns):
    total = p[0] * 10**9 + p[1] + ns
    return (total // 10**9, total % 10**9, p[2], p[3])


twice = sorted([(p[0], p[1], i, 0, p) for i, p in enumerate(short)] + [(*later(p, 30_000)[:2], i, 1, later(p, 30_000)) for i, p in enumerate(short)], key=lambda x: x[:4])
P.write(OUT / "field_duplicates.pcap", [x[4] for x in twice])
note("field_duplicates", "Every packet of base_short twice, the second 30 µs later (as when both ends of a veth are captured)", "each packet of base_short.pcap written again 30 µs later, all sorted by time", SAME, f"{len(short)} packets are duplicates")
shuffled, order = list(short), random.Random(5)
for i in range(0, len(shuffled) - 4, 4):
    part = shuffled[i:i + 4]
    order.shuffle(part)
    shuffled[i:i + 4] = part
P.write(OUT / "field_reordered.pcap", shuffled)
note("field_reordered", "base_short with its records out of order in the file, each with its true time", "within every 4 records of base_short.pcap the order is shuffled (random.Random(5)); times travel with the packets", "timestamps go backwards in the file", "sorted by time it is base_short")
jitter = random.Random(6)
P.write(OUT / "field_jittered.pcap", [later(p, jitter.randrange(-400, 400) * 1000) for p in short])
note("field_jittered", "base_short with its times jittered by up to 0.4 ms, so that they go backwards", "each time of base_short.pcap moved by -400..399 µs (random.Random(6)); the order of the records is kept", "timestamps go backwards in the file, the order of records is right", "the same exchanges as base_short; latencies differ by up to 0.8 ms")

# --- containers
for name, order_, nano in (("be_us", ">", False), ("le_ns", "<", True), ("be_ns", ">", True)):
    P.write(OUT / f"field_{name}.pcap", [(s, ns + (i % 1000 if nano else 0), o, d) for i, (s, ns, o, d) in enumerate(short, 1)], order=order_, nano=nano)
    note(f"field_{name}", f"base_short as {'big' if order_ == '>' else 'little'} endian pcap with {'nanoseconds' if nano else 'microseconds'}", "base_short.pcap rewritten" + ("; below the microsecond each time has its frame number mod 1000 as nanoseconds" if nano else ""), SAME)
with open(OUT / "field_modified.pcap", "wb") as f:
    f.write(struct.pack("<IHHiIII", 0xA1B2CD34, 2, 4, 0, 0, 262144, 1))
    for i, (s, ns, o, d) in enumerate(tiny, 1):
        f.write(struct.pack("<IIIIIHBB", s, ns // 1000, len(d), o, 1, 0x0800, 0, 0) + d)
note("field_modified", "base_tiny in the 'modified' pcap of magic a1b2cd34 (24-byte record headers)", "base_tiny.pcap rewritten", TINY)


def block(kind, body, order="<"):
    body += b"\0" * (-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def option(code, value, order="<"):
    return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def shb(order="<"):
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + option(1, b"a comment on the section", order) + option(3, b"Linux", order) + option(4, b"derive.py", order) + option(0, b"", order), order)


def idb(link, resol=None, name=b"eth0", order="<", offset=None, snaplen=262144):
    body = struct.pack(order + "HHI", link, 0, snaplen) + option(2, name, order)
    if resol is not None:
        body += option(9, bytes([resol]), order)
    if offset is not None:
        body += option(14, struct.pack(order + "q", offset), order)
    return block(1, body + option(0, b"", order), order)


def epb(interface, ticks, data, orig, order="<", comment=None):
    body = struct.pack(order + "IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), orig) + data + b"\0" * (-len(data) % 4)
    if comment:
        body += option(1, comment.encode(), order) + option(0, b"", order)
    return block(6, body, order)


ports = sorted({P.tcp(p[3])[0][1] for p in short} | {P.tcp(p[3])[1][1] for p in short} - {39098})
second = {p for i, p in enumerate(ports) if i % 2}
with open(OUT / "field_two_interfaces.pcapng", "wb") as f:
    f.write(shb() + idb(1, 9, b"eth0") + idb(101, None, b"tun0"))
    f.write(block(4, struct.pack("<HH", 1, 4 + len(b"broker.example.test\0")) + bytes([192, 0, 2, 1]) + b"broker.example.test\0" + b"\0" * (-(4 + 20) % 4) + struct.pack("<HH", 0, 0)))
    f.write(block(0x0BAD, struct.pack("<I", 32473) + b"a custom block with anything in it") + block(0x77777777, b"an unknown block type") + block(0x80000001, b"a local block type"))
    on = [0, 0]
    for i, (s, ns, o, d) in enumerate(short, 1):
        t = P.tcp(d)
        tun = t[0][1] in second or t[1][1] in second
        on[tun] += 1
        if tun:
            f.write(epb(1, s * 10**6 + ns // 1000, d[14:], o - 14, comment=f"packet {i}" if i % 50 == 0 else None))
        else:
            f.write(epb(0, s * 10**9 + ns, d, o, comment=f"packet {i}" if i % 50 == 0 else None))
        if i % 100 == 0:
            f.write(block(0x77777777, b"between the packets"))
    for n in (0, 1):
        f.write(block(5, struct.pack("<III", n, 0, 0) + option(1, b"statistics", "<") + option(4, struct.pack("<Q", 1000 + n)) + option(5, struct.pack("<Q", n * 3)) + option(0, b"")))
note("field_two_interfaces", "pcapng: two interfaces of different link types and time resolutions, name resolution, comments, custom and unknown blocks, statistics",
     "base_short.pcap written as pcapng: connections dealt to eth0 (Ethernet, 10^-9) and tun0 (raw IP, default 10^-6)", SAME, f"interface 0 has {on[0]} packets, interface 1 has {on[1]}", "the interface statistics say 0 packets dropped on interface 0 and 3 on interface 1", "tshark 4.0 counts the custom block as frame 1", files=["field_two_interfaces.pcapng"])
with open(OUT / "field_two_sections.pcapng", "wb") as f:
    half = len(tiny) // 2
    start = tiny[0][0] - 100
    f.write(shb("<") + idb(1, 0x80 | 20, b"binary", "<"))
    for s, ns, o, d in tiny[:half]:
        f.write(epb(0, s * 2**20 + ns * 2**20 // 10**9, d, o))
    f.write(shb(">") + idb(1, 6, b"offset", ">", offset=start))
    for s, ns, o, d in tiny[half:]:
        f.write(epb(0, (s - start) * 10**6 + ns // 1000, d, o, ">"))
note("field_two_sections", "pcapng: a little-endian section with times in 2^-20 s, then a big-endian section with if_tsoffset", f"base_tiny.pcap; packets 1..{half} in the first section, the rest in the second, times relative to an offset", TINY + "; times of the first section are rounded down to 2^-20 s", files=["field_two_sections.pcapng"])
with open(OUT / "field_simple_packets.pcapng", "wb") as f:
    f.write(shb() + idb(1, snaplen=65535))
    for s, ns, o, d in tiny:
        f.write(block(3, struct.pack("<I", o) + d + b"\0" * (-len(d) % 4)))
note("field_simple_packets", "pcapng of Simple Packet Blocks, which carry no times", "base_tiny.pcap rewritten", "the same exchanges as base_tiny, but the capture has no times", files=["field_simple_packets.pcapng"])

for i in range(5):
    (OUT / "field_rotated_C").mkdir(exist_ok=True)
total = sum(16 + len(p[3]) for p in base)
parts, size = [[] for _ in range(5)], 0
for p in base:
    parts[min(4, size * 5 // total)].append(p)
    size += 16 + len(p[3])
for i, part in enumerate(parts):
    P.write(OUT / "field_rotated_C" / f"base.pcap{i}", part)
note("field_rotated_C", "base as a set of five files base.pcap0..4, as tcpdump -C -W 5 names them", "base.pcap cut into five files of about the same size", "read together in order they are base; connections cross the files", files=[f"field_rotated_C/base.pcap{i}" for i in range(5)])
(OUT / "field_rotated_G").mkdir(exist_ok=True)
live = sorted(ANY.glob("rotated-*.pcap"))
for x in live:
    shutil.copy(x, OUT / "field_rotated_G" / x.name)
note("field_rotated_G", "The traffic of base recorded at the same time by a second tcpdump with -G 3 and the time in the names", "tcpdump -i vc -s 0 -G 3 -w 'rotated-%Y%m%d-%H%M%S.pcap' 'tcp and port 39098', beside base's recording",
     "read together in order of their names they hold the 2 last packets of an earlier connection (client port 40356), then base's packets; connections cross the files", files=[f"field_rotated_G/{x.name}" for x in live])
raw = (OUT / "base_short.pcap").read_bytes()
(OUT / "field_gz.pcap.gz").write_bytes(gzip.compress(raw, 9, mtime=0))
for tool, end in (("zstd", "zst"), ("lz4", "lz4")):
    subprocess.run([tool, "-q", "-f", "-9" if tool == "lz4" else "-19", str(OUT / "base_short.pcap"), str(OUT / f"field_{end}.pcap.{end}")] if tool == "lz4" else [tool, "-q", "-f", "-19", str(OUT / "base_short.pcap"), "-o", str(OUT / f"field_{end}.pcap.{end}")], check=True)
for end in ("gz", "zst", "lz4"):
    note(f"field_{end}", f"base_short compressed ({end})", f"base_short.pcap compressed", SAME, files=[f"field_{end}.pcap.{end}"])
whole = gzip.compress(raw, 9, mtime=0)
(OUT / "field_gz_cut.pcap.gz").write_bytes(whole[:len(whole) * 2 // 3])
note("field_gz_cut", "base_short.pcap.gz cut after two thirds of its bytes", "the first two thirds of field_gz.pcap.gz", "the packets before the cut are as in base_short; the gzip stream ends early", files=["field_gz_cut.pcap.gz"])

# --- link types and tunnels
def csum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(proto, payload, src=b"\xc6\x33\x64\x01", dst=b"\xc6\x33\x64\x02", n=0, frag=0):
    h = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), n & 0xFFFF, frag, 64, proto, 0, src, dst)
    return h[:10] + struct.pack(">H", csum(h)) + h[12:] + payload


def ipv6(proto, payload, src=bytes.fromhex("20010db8000000000000000000000011"), dst=bytes.fromhex("20010db8000000000000000000000012")):
    return struct.pack(">IHBB", 0x60000000, len(payload), proto, 64) + src + dst + payload


def udp(sport, dport, payload):
    return struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload


mac = bytes.fromhex("020000000002020000000001")
eth = mac + b"\x08\x00"
eth6 = mac + b"\x86\xdd"
wraps = {
    "vlan": (1, "an 802.1Q tag (VLAN 100)", lambda d, i: d[:12] + b"\x81\x00\x00\x64" + d[12:]),
    "qinq": (1, "an 802.1ad tag (200) around an 802.1Q tag (100)", lambda d, i: d[:12] + b"\x88\xa8\x00\xc8\x81\x00\x00\x64" + d[12:]),
    "mpls": (1, "two MPLS labels", lambda d, i: d[:12] + b"\x88\x47" + struct.pack(">II", 1000 << 12 | 64, 2000 << 12 | 1 << 8 | 64) + d[14:]),
    "pppoe": (1, "a PPPoE session", lambda d, i: d[:12] + b"\x88\x64\x11\x00\x00\x07" + struct.pack(">HH", len(d) - 14 + 2, 0x0021) + d[14:]),
    "gre": (1, "GRE (IPv4 in GRE, with a key)", lambda d, i: eth + ipv4(47, struct.pack(">HHI", 0x2000, 0x0800, 42) + d[14:], n=i)),
    "gretap": (1, "GRE carrying Ethernet (protocol 0x6558)", lambda d, i: eth + ipv4(47, struct.pack(">HH", 0, 0x6558) + d, n=i)),
    "erspan": (1, "ERSPAN type II mirroring (GRE with sequence number)", lambda d, i: eth + ipv4(47, struct.pack(">HHI", 0x1000, 0x88BE, i) + struct.pack(">II", 1 << 28 | 100 << 16 | 7, 0) + d, n=i)),
    "vxlan": (1, "VXLAN (VNI 4242, UDP 4789)", lambda d, i: eth + ipv4(17, udp(49152 + i % 1000, 4789, struct.pack(">II", 0x08000000, 4242 << 8) + d), n=i)),
    "geneve": (1, "Geneve (VNI 77, UDP 6081, an 8-byte option)", lambda d, i: eth + ipv4(17, udp(49152 + i % 1000, 6081, struct.pack(">BBHI", 2, 0, 0x6558, 77 << 8) + b"\x01\x02\x80\x01\0\0\0\x05" + d), n=i)),
    "ipip": (1, "IPv4 in IPv4", lambda d, i: eth + ipv4(4, d[14:], n=i)),
    "4in6": (1, "IPv4 in IPv6", lambda d, i: eth6 + ipv6(4, d[14:])),
    "ipv6_options": (1, "IPv4 in IPv6 with hop-by-hop and destination options", lambda d, i: eth6 + ipv6(0, b"\x3c\0\x05\2\0\0\1\0" + b"\x04\0\x01\4\0\0\0\0" + d[14:])),
    "null": (0, "link type NULL (BSD loopback, little-endian family 2)", lambda d, i: b"\2\0\0\0" + d[14:]),
    "loop": (108, "link type LOOP (OpenBSD loopback, big-endian family 2)", lambda d, i: b"\0\0\0\2" + d[14:]),
    "raw": (101, "link type RAW", lambda d, i: d[14:]),
    "raw12": (12, "link type 12 (RAW as some BSDs number it)", lambda d, i: d[14:]),
    "ipv4": (228, "link type IPV4", lambda d, i: d[14:]),
    "padded": (1, "Ethernet padding to 60 bytes plus a 4-byte FCS on every frame", lambda d, i: d + b"\0" * max(0, 60 - len(d)) + struct.pack("<I", i * 2654435761 % 2**32)),
}
for name, (lt, what, wrap) in wraps.items():
    packets = []
    for i, (s, ns, o, d) in enumerate(tiny, 1):
        new = wrap(d, i)
        packets.append((s, ns, len(new), new))
    P.write(OUT / f"field_{name}.pcap", packets, link=lt)
    note(f"field_{name}", f"base_tiny in {what}", f"base_tiny.pcap, each packet rewritten", TINY)
packets, fragmented = [], 0
for i, (s, ns, o, d) in enumerate(tiny, 1):
    ip = d[14:14 + struct.unpack(">H", d[16:18])[0]]
    if len(ip) <= 820:
        packets.append((s, ns, o, d))
        continue
    fragmented += 1
    payload, at = ip[20:], 0
    while at < len(payload):
        piece = payload[at:at + 800]
        more = at + 800 < len(payload)
        new = d[:14] + ipv4(6, piece, ip[12:16], ip[16:20], i, (0x2000 if more else 0) | at // 8)
        packets.append((s, ns, len(new), new))
        at += 800
P.write(OUT / "field_ip_fragments.pcap", packets)
note("field_ip_fragments", "base_tiny with every large IP packet in fragments of 800 bytes", "base_tiny.pcap, IP packets above 820 bytes fragmented", f"{fragmented} IP packets are fragmented", "with fragments joined: " + TINY)
for name, lt in (("sll", 113), ("sll2", 276)):
    l, packets = P.read(ANY / f"{name}.pcap")
    assert l == lt
    P.write(OUT / f"field_any_{name}.pcap", packets[2:len(tiny) + 2], link=lt)
    note(f"field_any_{name}", f"The start of base's traffic as recorded by tcpdump -i any ({name.upper()})", f"tcpdump -i any -y LINUX_{name.upper()} at the same time as base's recording; its packets 3..{len(tiny) + 2} (the first two belong to an earlier connection's end)", TINY + "; times differ by microseconds (another tap of the same packets)")

# --- damage
data = (OUT / "base_tiny.pcap").read_bytes()
(OUT / "field_truncated.pcap").write_bytes(data[:-37])
note("field_truncated", "base_tiny whose last record is cut short", "base_tiny.pcap without its last 37 bytes", f"{len(tiny) - 1} whole packets; the last record is cut")
(OUT / "field_header_only.pcap").write_bytes(data[:24])
note("field_header_only", "A pcap file header and no packets", "the first 24 bytes of base_tiny.pcap", "no packets")
(OUT / "field_empty.pcap").write_bytes(b"")
note("field_empty", "An empty file", "nothing written", "0 bytes: not a capture")
(OUT / "field_half_header.pcap").write_bytes(data[:11])
note("field_half_header", "A file header cut short", "the first 11 bytes of base_tiny.pcap", "not a whole file header")
(OUT / "field_wrong_magic.pcap").write_bytes(b"\xde\xad\xbe\xef" + data[4:])
note("field_wrong_magic", "A file with a magic number that no capture has", "base_tiny.pcap with de ad be ef as its first 4 bytes", "not a capture")
out = [P.header()]
for i, (s, ns, o, d) in enumerate(tiny, 1):
    out.append(struct.pack("<IIII", s, ns // 1000, len(d), len(d) - 10 if i % 7 == 0 else o) + d)
(OUT / "field_incl_over_orig.pcap").write_bytes(b"".join(out))
note("field_incl_over_orig", "Records that claim more captured bytes than the packet had", "every 7th record of base_tiny.pcap has orig_len = incl_len - 10", f"{len(tiny) // 7} records have incl_len > orig_len", "the IP lengths inside are right: " + TINY)
at, middle = 24, len(tiny) // 2
for s, ns, o, d in tiny[:middle]:
    at += 16 + len(d)
(OUT / "field_absurd_length.pcap").write_bytes(data[:at + 8] + struct.pack("<II", 0x7FFFFFF0, 0x7FFFFFF0) + data[at + 16:])
note("field_absurd_length", "A record in the middle that claims 2 GiB", f"base_tiny.pcap with incl_len and orig_len of record {middle + 1} set to 0x7ffffff0", f"the first {middle} packets are whole; record {middle + 1} is not believable")
ng = (OUT / "field_two_interfaces.pcapng").read_bytes()
(OUT / "field_cut.pcapng").write_bytes(ng[:60_001])
note("field_cut", "A pcapng cut in the middle of a block", "the first 60001 bytes of field_two_interfaces.pcapng", "the packets before the cut are whole; the last block is cut", files=["field_cut.pcapng"])
keys = OUT / "tls13.keys.log"
subprocess.run(["editcap", "--inject-secrets", f"tls,{keys}", "-F", "pcapng", str(OUT / "tls13.pcap"), str(OUT / "tls13_dsb.pcapng")], check=True, capture_output=True)
note("tls13_dsb", "tls13 as pcapng with its keys in a Decryption Secrets Block", "editcap --inject-secrets tls,tls13.keys.log tls13.pcap tls13_dsb.pcapng", "decrypts by itself, without a key log file beside it, to the same as tls13 with its key log", files=["tls13_dsb.pcapng"])
notes["field_absurd_length"] |= dict(packets=middle, link="EN10MB")
(HERE.parent / "scratch" / "derived.json").write_text(json.dumps(notes, indent=1))
print(len(base), len(short), len(tiny), len(notes))
