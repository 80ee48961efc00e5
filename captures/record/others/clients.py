"""Clients of ten protocols: `python clients.py NAME`. See record.sh."""

import sys


def talk_redis():
    import redis,random
    r=redis.Redis(port=16379); r.set('a',1)
    for i in range(60): r.set(f'key:{i}',random.randbytes(random.randrange(1,300))); r.get(f'key:{i}')
    r.hset('h',mapping={str(i):i for i in range(50)}); r.hgetall('h'); r.lpush('l',*range(200)); r.lrange('l',0,-1); r.info()
    p=r.pipeline(); [p.incr('n') for _ in range(100)]; p.execute()


def talk_http():
    import httpx,socket,time,h2.connection,h2.events,random
    # prior knowledge HTTP/2 over plain TCP with h2
    from h2.connection import H2Connection
    from h2.config import H2Configuration
    s=socket.create_connection(('127.0.0.1',18080)); c=H2Connection(H2Configuration(client_side=True)); c.initiate_connection(); s.sendall(c.data_to_send())
    for i in range(1,81,2):
        c.send_headers(i,[(':method','POST' if i%4==3 else 'GET'),(':path','/%d'%(i*13%900)),(':authority','localhost'),(':scheme','http')],end_stream=i%4!=3)
        if i%4==3: c.send_data(i,random.randbytes(random.randrange(300)),end_stream=True)
        s.sendall(c.data_to_send()); done=False
        while not done:
            for e in c.receive_data(s.recv(65536)):
                if isinstance(e,h2.events.DataReceived): c.acknowledge_received_data(e.flow_controlled_length,e.stream_id)
                if isinstance(e,h2.events.StreamEnded): done=True
            s.sendall(c.data_to_send())
    c.close_connection(); s.sendall(c.data_to_send()); s.close()
    with httpx.Client() as h:
        for i in range(25): h.get(f'http://127.0.0.1:18080/{i*37}') if i%3 else h.post(f'http://127.0.0.1:18080/{i*11}',json={'a':list(range(i))})


def talk_grpc():
    import grpc,random
    from concurrent import futures
    class H(grpc.GenericRpcHandler):
        def service(self,d):
            if d.method.endswith('Echo'): return grpc.unary_unary_rpc_method_handler(lambda r,c: r+r)
            if d.method.endswith('Many'): return grpc.unary_stream_rpc_method_handler(lambda r,c: (r[:i] for i in range(20)))
            if d.method.endswith('Both'): return grpc.stream_stream_rpc_method_handler(lambda it,c: (x for x in it))
    s=grpc.server(futures.ThreadPoolExecutor(2)); s.add_generic_rpc_handlers((H(),)); s.add_insecure_port('127.0.0.1:15051'); s.start()
    ch=grpc.insecure_channel('127.0.0.1:15051')
    for i in range(40): ch.unary_unary('/a.S/Echo')(random.randbytes(random.randrange(400)))
    for i in range(4): list(ch.unary_stream('/a.S/Many')(random.randbytes(60)))
    list(ch.stream_stream('/a.S/Both')(random.randbytes(random.randrange(200)) for _ in range(60)))
    ch.close(); s.stop(0)


def talk_postgresql():
    import psycopg
    c=psycopg.connect('host=127.0.0.1 port=15432 user=postgres dbname=postgres sslmode=disable',autocommit=True)
    c.execute('create table if not exists t(id int primary key,name text,v bytea)')
    for i in range(60): c.execute('insert into t values(%s,%s,%s) on conflict do nothing',(i,'name%d'%i,bytes(i)))
    for i in range(40): c.execute('select * from t where id<%s',(i,)).fetchall()
    with c.cursor(binary=True) as k: k.execute('select * from t'); k.fetchall()
    with c.cursor() as k:
        with k.copy('copy t to stdout') as q:
            for _ in q: pass
    try: c.execute('select nothing')
    except Exception: pass
    c.close()


def talk_mysql():
    import pymysql
    c=pymysql.connect(host='127.0.0.1',port=13306,user='root',password='',autocommit=True)
    k=c.cursor(); k.execute('create database if not exists d'); k.execute('use d'); k.execute('create table if not exists t(id int primary key,name text)')
    for i in range(60): k.execute('replace into t values(%s,%s)',(i,'name%d'%i))
    for i in range(40): k.execute('select * from t where id<%s',(i,)); k.fetchall()
    k.execute('show variables'); k.fetchall()
    try: k.execute('select nothing from nowhere')
    except Exception: pass
    c.close()


def talk_mqtt():
    import paho.mqtt.client as m,time,random
    for v in (m.MQTTv311,m.MQTTv5):
        c=m.Client(m.CallbackAPIVersion.VERSION2,client_id='client-%d'%v,protocol=v); c.connect('127.0.0.1',11883); c.loop_start(); c.subscribe('a/#',1)
        for i in range(60): c.publish('a/b%d'%(i%5),random.randbytes(random.randrange(200)),qos=i%3).wait_for_publish(2)
        time.sleep(.3); c.disconnect(); c.loop_stop()


def talk_amqp():
    import pika,random
    c=pika.BlockingConnection(pika.ConnectionParameters('127.0.0.1',15672-10000)); h=c.channel(); h.queue_declare('q'); h.confirm_delivery()
    for i in range(60): h.basic_publish('','q',random.randbytes(random.randrange(300)))
    for i in range(60):
        f,p,b=h.basic_get('q'); f and h.basic_ack(f.delivery_tag)
    h.queue_delete('q'); c.close()


def talk_zookeeper():
    from kazoo.client import KazooClient
    import random
    z=KazooClient('127.0.0.1:12181'); z.start(); z.ensure_path('/a/b')
    for i in range(50): z.create(f'/a/b/n{i}',random.randbytes(random.randrange(200))); z.get(f'/a/b/n{i}'); z.set(f'/a/b/n{i}',b'x'*i); z.exists(f'/a/b/m{i}')
    z.get_children('/a/b'); z.get_acls('/a')
    for i in range(30): z.delete(f'/a/b/n{i}')
    z.stop()


def talk_cassandra():
    from cassandra.cluster import Cluster
    import random,logging
    c=Cluster(['127.0.0.1'],port=19042,protocol_version=4,connect_timeout=10,schema_metadata_enabled=False,token_metadata_enabled=False); s=c.connect()
    for i in range(60): s.execute('insert into k.t (id,name) values (%s,%s)',(i,'n'*random.randrange(100)))
    for i in range(40): list(s.execute('select * from k.t where id=%s',(i,)))
    try:
        p=s.prepare('insert into k.t (id,name) values (?,?)')
        for i in range(60): s.execute(p,(i,'x'*i))
    except Exception as e: print('prep',e)
    fs=[s.execute_async('select * from k.t') for _ in range(80)]; [f.result() for f in fs]
    c.shutdown()


def talk_tls():
    import httpx

    with httpx.Client(http2=True, verify=False) as h:
        for i in range(30):
            h.get(f"https://127.0.0.1:18443/{i * 29}")


if __name__ == "__main__":
    globals()["talk_" + sys.argv[1]]()
