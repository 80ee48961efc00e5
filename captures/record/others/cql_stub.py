"""A CQL v4 server of few words."""
import socket,struct,threading,random
def s(x): x=x.encode(); return struct.pack('>H',len(x))+x
def b(x): return struct.pack('>i',-1) if x is None else struct.pack('>i',len(x))+x
import uuid,ipaddress
VAR,UUID,INET,INT,SETV,BLOB=13,12,16,9,(34,13),3
def opt(t): return struct.pack('>HH',*t) if isinstance(t,tuple) else struct.pack('>H',t)
def rows(ks,t,cols,data):
    out=struct.pack('>iii',2,1,len(cols))+s(ks)+s(t)+b''.join(s(n)+opt(k) for n,k in cols)+struct.pack('>i',len(data))
    return out+b''.join(b(c) for r in data for c in r)
H=uuid.UUID(int=7).bytes; IP=ipaddress.ip_address('127.0.0.1').packed
TOK=struct.pack('>i',1)+b(b'0')
LOCAL=[('key',VAR),('cluster_name',VAR),('data_center',VAR),('rack',VAR),('host_id',UUID),('release_version',VAR),('partitioner',VAR),('rpc_address',INET),('broadcast_address',INET),('listen_address',INET),('schema_version',UUID),('tokens',SETV),('cql_version',VAR)]
def answer(q):
    q=q.lower()
    if 'system.local' in q: return rows('system','local',LOCAL,[(b'local',b'Test',b'dc1',b'r1',H,b'3.11.4',b'org.apache.cassandra.dht.Murmur3Partitioner',IP,IP,IP,H,TOK,b'3.4.4')])
    if 'system.peers' in q: return rows('system','peers',[('peer',INET),('host_id',UUID)],[])
    if 'system_schema' in q or q.startswith('select') and 'schema' in q: return rows('system_schema','x',[('keyspace_name',VAR)],[])
    if q.startswith('select'): return rows('k','t',[('id',INT),('name',VAR),('v',BLOB)],[(struct.pack('>i',i),b'name%d'%i,random.randbytes(i%40)) for i in range(random.randrange(30))])
    if q.startswith('use'): return struct.pack('>i',3)+s('k')
    return struct.pack('>i',1)
def serve(c):
    f=c.makefile('rb')
    while True:
        h=f.read(9)
        if len(h)<9: return
        v,fl,st,op,n=struct.unpack('>BBhBi',h); body=f.read(n)
        if v&127>4: o,r=0,struct.pack('>i',10)+s('Invalid or unsupported protocol version; supported versions are (3/v3, 4/v4)'); v=4
        elif op==5: o,r=6,struct.pack('>H',2)+s('CQL_VERSION')+struct.pack('>H',1)+s('3.4.4')+s('COMPRESSION')+struct.pack('>H',0)
        elif op==1: o,r=2,b''
        elif op==11: o,r=2,b''
        elif op==7:
            (m,)=struct.unpack('>i',body[:4]); o,r=8,answer(body[4:4+m].decode())
        elif op==9:
            o,r=8,struct.pack('>i',4)+struct.pack('>H',4)+b'abcd'+struct.pack('>iiiH',1,2,2,1)[:12]+struct.pack('>H',0)+s('k')+s('t')+s('id')+opt(INT)+s('name')+opt(VAR)+struct.pack('>ii',4,0)
            r=struct.pack('>i',4)+struct.pack('>H',4)+b'abcd'+struct.pack('>iii',1,2,0)+s('k')+s('t')+s('id')+opt(INT)+s('name')+opt(VAR)+struct.pack('>ii',4,0)
        else: o,r=8,struct.pack('>i',1)
        c.sendall(struct.pack('>BBhBi',0x80|(v&127),0,st,o,len(r))+r)
l=socket.create_server(('127.0.0.1',19042))
while True: threading.Thread(target=serve,args=(l.accept()[0],),daemon=True).start()
