"""rec.py NAME 'what was done' [--net] [--wire T:JSON]... [--sig T:NODE:SIG]... [--sh T:cmd]... -- Story args"""
import warnings; warnings.simplefilter("ignore")
import json, os, signal, subprocess, sys, time, threading, zstandard, datetime
R="run"; args=sys.argv[1:]; name,what=args[0],args[1]; rest=args[2:]; i=rest.index("--"); opts,story=rest[:i],rest[i+1:]
D=f"stories/{name}"; os.makedirs(D,exist_ok=True); log=open(f"{D}/story.txt","w"); log.write(what+"\n"); lock=threading.Lock()
def say(s):
    with lock: t=datetime.datetime.utcnow().strftime("%H:%M:%S.%f")[:12]; log.write(f"{t} {s}\n"); log.flush(); print(t,s)
import shlex
JV=["java","-Xmx400m","-XX:+UseSerialGC","-XX:TieredStopAtLevel=1","-Dlog4j2.configurationFile=k4/log4j2-client.xml","-cp",f"{R}/classes:{R}/jars/*","Story"]
groups=[]; cur=[]
for x in story+["+"]:
    if x=="+": groups.append(cur); cur=[]
    else: cur.append(x)
pre=[g for g in groups if g[0] in ("create","quota")]; story=[x for g in groups if g not in pre for x in ["+"]+g][1:]
if pre:
    r=subprocess.run(["ip","netns","exec","t2b",*JV,*[x for g in pre for x in ["+"]+g][1:]],capture_output=True,text=True); log.write("before the capture:\n"+r.stdout); time.sleep(1.0)
net="--net" in opts; off={n:os.path.getsize(f"{R}/node{n}/requests.log") if os.path.exists(f"{R}/node{n}/requests.log") else 0 for n in (1,2,3)}
dumps=[]; CL=[]
def dump(ns,iface,out):
    p=subprocess.Popen(["ip","netns","exec",ns,"tcpdump","-i",iface,"-s","0","-B","65536","-U","-Z","root","-w",out,"tcp and (portrange 19091-19093 or portrange 19097-19099)"],stderr=subprocess.PIPE,text=True)
    while "listening on" not in p.stderr.readline(): pass
    dumps.append(p)
if net: dump("t2c","t2t1",f"{D}/client.pcap"); dump("t2b","t2t0",f"{D}/broker.pcap")
else: dump("t2b","lo",f"{D}/{name}.pcap")
time.sleep(.3); t0=time.time(); timers=[]
def pid(n): return CL[0] if n=="c" else int(open(f"{R}/node{n}/pid").read())
it=iter(opts)
def at(T,f): t=threading.Timer(float(T),f); t.start(); timers.append(t)
for o in it:
    if o=="--net": continue
    v=next(it)
    if o=="--sig":
        T,n,s=v.split(":"); at(T,lambda n=n,s=s:(say(f"SIG{s} node {n}"),os.kill(pid(n),getattr(signal,"SIG"+s))))
    elif o=="--wire":
        T,j=v.split(":",1); at(T,lambda j=j:(say(f"wire {j}"),open(R+"/wire.json","w").write(j)))
    elif o=="--sh":
        T,c=v.split(":",1); at(T,lambda c=c:(say(f"$ {c}"),say(subprocess.run(c,shell=True,capture_output=True,text=True).stdout[-500:])))
ns="t2c" if net else "t2b"
say("story begins"); p=subprocess.Popen(["ip","netns","exec",ns,"java","-Xmx400m","-XX:+UseSerialGC","-XX:TieredStopAtLevel=1","-Dlog4j2.configurationFile=k4/log4j2-client.xml","-cp",f"{R}/classes:{R}/jars/*","Story",*story],stdout=subprocess.PIPE,stderr=subprocess.PIPE,text=True); CL.append(p.pid); so,se=p.communicate()
for l in so.splitlines(): log.write(l+"\n")
open(f"{D}/client.err","w").write(se[-20000:])
for t in timers: t.join()
pass
say("story ends"); time.sleep(1)
for d in dumps: d.send_signal(2); e=d.communicate()[1]; say("tcpdump: "+" ".join(e.split("\n")))
time.sleep(.5); lines=[]
for n in (1,2,3):
    f=f"{R}/node{n}/requests.log"
    if os.path.exists(f):
        h=open(f,"rb"); h.seek(off[n]); lines+=[l for l in h.read().decode("utf8","replace").splitlines() if l.startswith("[") and l.endswith("}")]
lines.sort(key=lambda l:l[:25]); open(f"{D}/requests.log.zst","wb").write(zstandard.compress("\n".join(lines).encode(),9))
print("\n".join(so.splitlines()[-12:])); print({f:os.path.getsize(D+"/"+f) for f in os.listdir(D)})
