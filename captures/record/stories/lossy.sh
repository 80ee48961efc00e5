export BOOT=10.66.0.1:19091,10.66.0.1:19092,10.66.0.1:19093
R="python3 rec.py"
$R slow_follower "Node 3 (a follower of s7-0) is suspended at 5 s, resumed at 8 s; p7 has acks=all, p7one writes to a topic of one replica." --sig 5:3:STOP --sig 8:3:CONT -- create topic=s7 assign=1,2,3 + create topic=s7one assign=1 + produce at=1 client=p7 topic=s7 n=350 gap=25 p.acks=all sync=1 + produce at=1 client=p7one topic=s7one n=250 gap=30 p.acks=all sync=1
for L in 1 2 3 5; do
echo "{\"up_ms\":20,\"down_ms\":20,\"loss_up\":0.0$L,\"loss_down\":0.0$L}" > run/wire.json
$R lossy_$L "A wire of 20 ms each way that loses $L % of the packets each way; captured at both ends." --net -- create topic=l$L assign=1 + produce at=1 client=pl$L topic=l$L n=200 gap=10 sync=1 size=600 p.acks=1 + produce at=1 client=plp$L topic=l$L n=250 gap=40 p.acks=1 p.linger.ms=0 size=400 + consume at=2 client=cl$L topic=l$L assign=1 secs=10
done
