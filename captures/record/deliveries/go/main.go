// deliveries BOOTSTRAP OUT SPEC [+ SPEC]...: what ../clients.py is, with franz-go; a goroutine a client.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	servers []string
	out     *os.File
	lock    sync.Mutex
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func write(lines ...any) {
	var text []byte
	for _, one := range lines {
		line, err := json.Marshal(one)
		must(err)
		text = append(append(text, line...), '\n')
	}
	lock.Lock()
	defer lock.Unlock()
	_, err := out.Write(text)
	must(err)
}

func value() []byte {
	made := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
	return append(made, strings.Repeat("x", 60)...)
}

type settings map[string]string

func (s settings) number(name string) int {
	if s[name] == "" {
		return 0
	}
	found, err := strconv.Atoi(s[name])
	must(err)
	return found
}

func (s settings) duration(name string) time.Duration {
	return time.Duration(s.number(name)) * time.Millisecond
}

func produce(topic string, s settings, end time.Time) {
	options := []kgo.Opt{kgo.SeedBrokers(servers...), kgo.ClientID("p-" + topic), kgo.ProducerLinger(s.duration("linger")),
		kgo.MetadataMaxAge(500 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond)}
	switch s["acks"] {
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	}
	codecs := map[string]kgo.CompressionCodec{"": kgo.NoCompression(), "lz4": kgo.Lz4Compression(), "gzip": kgo.GzipCompression()}
	client, err := kgo.NewClient(append(options, kgo.ProducerBatchCompression(codecs[s["codec"]]))...)
	must(err)
	for time.Now().Before(end) {
		client.Produce(context.Background(), &kgo.Record{Topic: topic, Value: value()}, nil)
		time.Sleep(s.duration("every"))
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	must(client.Flush(ctx))
	client.Close()
}

func consume(topic string, s settings, end time.Time) {
	group := s["group"]
	options := []kgo.Opt{kgo.SeedBrokers(servers...), kgo.ClientID("c" + group[1:]), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.MetadataMaxAge(500 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond)}
	if s["latest"] == "" {
		options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	} else {
		options = append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	}
	if s["committed"] != "" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if s["rack"] != "" {
		options = append(options, kgo.Rack(s["rack"]))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	half := time.Now().Add(time.Until(end) / 2)
	rewinds := s["rewinds"] != ""
	for time.Now().Before(end) {
		ctx, stop := context.WithTimeout(context.Background(), 500*time.Millisecond)
		began := time.Now().UnixNano()
		found := client.PollFetches(ctx)
		ended := time.Now().UnixNano()
		stop()
		var lines []any
		found.EachRecord(func(r *kgo.Record) {
			sent := binary.BigEndian.Uint64(r.Value)
			lines = append(lines, []any{group, r.Topic, r.Partition, r.Offset, sent, began, ended})
		})
		write(lines...)
		if len(lines) > 0 {
			time.Sleep(s.duration("works"))
		}
		if rewinds && time.Now().After(half) {
			client.SetOffsets(map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: 0}}})
			rewinds = false
		}
	}
	client.Close()
}

func transact(topic string, s settings, steps []string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(servers...), kgo.ClientID(s["client"]), kgo.TransactionalID(s["id"]),
		kgo.TransactionTimeout(s.duration("timeout")), kgo.ProducerLinger(0), kgo.DefaultProduceTopic(topic))
	must(err)
	for _, step := range steps {
		word, number, _ := strings.Cut(step, ":")
		count, _ := strconv.Atoi(number)
		began := time.Now().UnixNano()
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
		var failed error
		switch word {
		case "begin":
			failed = client.BeginTransaction()
		case "send":
			for range count {
				client.Produce(ctx, &kgo.Record{Value: value()}, func(_ *kgo.Record, err error) {
					if err != nil {
						failed = err
					}
				})
			}
			if err := client.Flush(ctx); err != nil {
				failed = err
			}
		case "sleep":
			time.Sleep(time.Duration(count) * time.Millisecond)
		case "commit":
			failed = client.EndTransaction(ctx, kgo.TryCommit)
		case "abort":
			failed = client.EndTransaction(ctx, kgo.TryAbort)
		}
		stop()
		said := map[string]any{"client": s["client"], "id": s["id"], "topic": topic, "step": word, "count": count,
			"began": began, "ended": time.Now().UnixNano(), "error": nil}
		if failed != nil {
			said["error"] = failed.Error()
		}
		write(said)
	}
	client.Close()
}

// SPEC is ROLE TOPIC [NAME=VALUE]... [STEP]...
func run(spec []string) {
	s, steps := settings{}, []string{}
	for _, word := range spec[2:] {
		if name, text, found := strings.Cut(word, "="); found {
			s[name] = text
		} else {
			steps = append(steps, word)
		}
	}
	time.Sleep(s.duration("after"))
	end := time.Now().Add(s.duration("for"))
	switch spec[0] {
	case "produce":
		produce(spec[1], s, end)
	case "consume":
		consume(spec[1], s, end)
	case "transact":
		transact(spec[1], s, steps)
	default:
		log.Fatal(fmt.Sprint("no role ", spec[0]))
	}
}

func main() {
	servers = strings.Split(os.Args[1], ",")
	var err error
	out, err = os.OpenFile(os.Args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	var all sync.WaitGroup
	for _, text := range strings.Split(strings.Join(os.Args[3:], "\n"), "\n+\n") {
		all.Go(func() { run(strings.Split(text, "\n")) })
	}
	all.Wait()
}
