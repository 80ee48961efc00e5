"""wire.py: TAPs t2t0 (ns h5b, 10.55.1.1) and t2t1 (ns h5c, 10.55.1.2) joined in user space; run/wire.json
{"up_ms","down_ms","loss_up","loss_down"} is reread when it changes. up = from the client to the broker."""
import fcntl, heapq, json, os, random, select, signal, struct, time
random.seed(5)
signal.signal(signal.SIGTERM, lambda *a: (_ for _ in ()).throw(KeyboardInterrupt()))
def tap(name):
    f = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK); fcntl.ioctl(f, 0x400454ca, struct.pack("16sH22x", name.encode(), 0x1002)); return f
a, b = tap("t2t0"), tap("t2t1"); q=[]; n=0; last={a:0.,b:0.}; C="run/wire.json"; m=0; cfg=dict(up_ms=0,down_ms=0,loss_up=0,loss_down=0); st=dict(frames=0,lost=0)
print("ready", flush=True)
try:
    while True:
        try:
            t=os.stat(C).st_mtime_ns
            if t!=m: cfg.update(json.load(open(C))); m=t
        except (OSError, ValueError): pass
        w = min(0.05, max(0, q[0][0]-time.monotonic())) if q else 0.05
        for f in select.select([a,b],[],[],w)[0]:
            while True:
                try: p=os.read(f,65535)
                except OSError: break
                o = b if f==a else a; up = f==b; st["frames"]+=1
                if p[12:14]==b"\x08\x00" and random.random() < cfg["loss_up" if up else "loss_down"]: st["lost"]+=1; continue
                t=time.monotonic()+cfg["up_ms" if up else "down_ms"]/1000; t=last[o]=max(t,last[o]+1e-6); heapq.heappush(q,(t,n,o,p)); n+=1
        while q and q[0][0]<=time.monotonic():
            _,_,o,p=heapq.heappop(q)
            try: os.write(o,p)
            except OSError: pass
except KeyboardInterrupt: pass
print(st, flush=True)
