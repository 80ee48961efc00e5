"""oracle.py NAME PORT...: NAME.exchanges.jsonl.zst: each exchange of a loss-free capture with the capture frames that carry it.

Made by a plain reader of its own (no dissector): length prefixes, headers and TCP sequence numbers only. Frames count from 1.
"""
import bisect, json, struct, subprocess, sys
from pathlib import Path
import pcapfile as P

OUT = Path(__file__).resolve().parents[2]


def main(name, ports):
    link, packets = P.read(OUT / f"{name}.pcap")
    assert len(packets)
    number, current, start, marks, data = 0, {}, {}, {}, {}
    for n, (sec, ns, _, raw) in enumerate(packets, 1):
        t = P.tcp(raw, link)
        src, dst, seq, flags, payload = t
        pair = tuple(sorted((src, dst)))
        if flags & 2 and not flags & 16:
            number += 1
            current[pair] = number
        key = (current[pair], src, dst)
        if flags & 2:
            start[key] = seq + 1 & 0xFFFFFFFF
        elif payload:
            have = data.setdefault(key, bytearray())
            offset = (seq - start[key]) % 2**32
            assert offset <= len(have), (name, n, "a hole: this capture is not loss-free")
            if offset + len(payload) > len(have):
                marks.setdefault(key, []).append((len(have), n, sec * 10**6 + ns // 1000))
                have += payload[len(have) - offset:]
    out = []
    for key in sorted(data):
        if key[2][1] not in ports:
            continue
        back = (key[0], key[2], key[1])
        answers = {}
        for which, k in (("request", key), ("response", back)):
            at, whole = 0, data.get(k, b"")
            starts = [m[0] for m in marks.get(k, [])]
            while at + 4 <= len(whole):
                size, = struct.unpack(">i", whole[at:at + 4])
                if at + 4 + size > len(whole):
                    break
                first, last = (marks[k][bisect.bisect_right(starts, x) - 1] for x in (at, at + 3 + size))
                f = bytes(whole[at + 4:at + 4 + size])
                span = {"bytes": size + 4, "first_frame": first[1], "last_frame": last[1], "first_at_us": first[2], "last_at_us": last[2]}
                if which == "request":
                    api, version, correlation, length = struct.unpack(">hhih", f[:10])
                    row = {"connection": key[0], "client_port": key[1][1], "api_key": api, "api_version": version, "correlation_id": correlation, "client_id": f[10:10 + length].decode() if length >= 0 else None, "request": span, "response": None}
                    answers.setdefault(correlation, []).append(row)
                    out.append(row)
                else:
                    answers[struct.unpack(">i", f[:4])[0]].pop(0)["response"] = span
                at += 4 + size
    out.sort(key=lambda r: (r["request"]["last_frame"], r["correlation_id"]))
    text = "".join(json.dumps(r) + "\n" for r in out)
    subprocess.run(["zstd", "-19", "-q", "-f", "-o", str(OUT / f"{name}.exchanges.jsonl.zst")], input=text.encode(), check=True)
    print(name, len(out), "exchanges,", sum(r["response"] is None for r in out), "without a response")


main(sys.argv[1], set(map(int, sys.argv[2:])))
