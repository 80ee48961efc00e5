"""mktoml.py: writes NAME.toml from notes.py (titles, what was done, expectations) and from counts taken from the capture itself"""
import hashlib, json, os, re, subprocess, sys, collections
import wirecount
from notes import NOTES, CLUSTER, LINKS
CAP = "../.."
def q(s): return json.dumps(s, ensure_ascii=False)
ALL = {}
def names():
    for f in os.listdir(CAP):
        if f.endswith(".requests.log.zst"):
            for l in subprocess.run(["zstd", "-dcq", f"{CAP}/{f}"], capture_output=True, text=True).stdout.splitlines():
                h = json.loads(l[l.index("{"):])["requestHeader"]; ALL[h["requestApiKey"]] = h["requestApiKeyName"]
    ALL.update({17: "SASL_HANDSHAKE", 36: "SASL_AUTHENTICATE", 58: "ENVELOPE"})
def camel(s): return "".join(w.capitalize() for w in s.split("_"))
ERR = {1: "OFFSET_OUT_OF_RANGE", 3: "UNKNOWN_TOPIC_OR_PARTITION", 6: "NOT_LEADER_OR_FOLLOWER", 7: "REQUEST_TIMED_OUT", 10: "MESSAGE_TOO_LARGE", 14: "COORDINATOR_LOAD_IN_PROGRESS", 19: "NOT_ENOUGH_REPLICAS", 27: "REBALANCE_IN_PROGRESS", 35: "UNSUPPORTED_VERSION", 42: "INVALID_REQUEST", 47: "INVALID_PRODUCER_EPOCH", 48: "INVALID_TXN_STATE", 51: "CONCURRENT_TRANSACTIONS", 70: "FETCH_SESSION_ID_NOT_FOUND", 71: "INVALID_FETCH_SESSION_EPOCH", 74: "FENCED_LEADER_EPOCH", 75: "UNKNOWN_LEADER_EPOCH", 79: "MEMBER_ID_REQUIRED", 89: "THROTTLING_QUOTA_EXCEEDED", 90: "PRODUCER_FENCED", 100: "UNKNOWN_TOPIC_ID", 106: "FETCH_SESSION_TOPIC_ID_ERROR"}
def main():
    names()
    for n, d in NOTES.items():
        p = f"{CAP}/{n}.pcap"
        if not os.path.exists(p): print("missing", n); continue
        r, t, e = wirecount.main(p, f"{CAP}/{n}.requests.log.zst")
        info = subprocess.run(["capinfos", "-Mc", "-E", p], capture_output=True, text=True).stdout
        pk = int(re.search(r"Number of packets:\s+(\d+)", info).group(1)); data = open(p, "rb").read()
        link = {1: "EN10MB", 276: "LINUX_SLL2"}[int.from_bytes(data[20:24], "little") & 0xffff]
        o = [f"title = {q(d['title'])}", f"made = {q(CLUSTER + ' ' + d['made'] + ' ' + LINKS.get(d.get('link', 'lo'), ''))}", f'brokers = ["Apache Kafka 4.3.1 (KRaft), 3 combined broker+controller nodes"]', f"clients = {json.dumps(d['clients'])}", f'link_type = "{link}"', f"packets = {pk}", f'sha256 = "{hashlib.sha256(data).hexdigest()}"', "captured_at = 2026-11-21", f'truth = "{n}.requests.log.zst"',
             f"truth_lines = {t['truth_lines']}  # requests in the brokers' own log over this time", f"truth_matched = {t['matched']}  # of them found in this capture by connection, correlation id, API and version", f"requests_not_in_truth = {t['wire_only']}  # on the wire but not in the log", "[shows]  # requests on the wire, by API and version, counted by record/k4/wirecount.py"]
        o += [f'"{camel(ALL.get(k, "Api%d" % k))} v{v} request" = {c}' for (k, v), c in sorted(r.items())]
        o += [f'"{camel(k)} answers or partitions with error {c} {ERR.get(c, "")}"'.replace(' "', '"') + f" = {x}  # from the truth log" for (k, c), x in sorted(e.items())]
        # expect must come before the table: tables end only at the next table
        i = o.index(next(x for x in o if x.startswith("[shows]")))
        o[i:i] = ["expect = ["] + [f"  {q(x)}," for x in d["expect"]] + ["]"]
        open(f"{CAP}/{n}.toml", "w").write("\n".join(o) + "\n")
        import tomllib; tomllib.loads(open(f"{CAP}/{n}.toml").read())
        print(n, pk, len(data), t["truth_lines"], t["matched"], t["wire_only"])
    for f in sorted(os.listdir(CAP)):
        if f.endswith(".pcap") and f[:-5] not in NOTES: print("no notes for", f)
main()
