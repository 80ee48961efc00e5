// traces BROKER ROLE OUT: clients of franz-go whose records carry the trace context of OpenTelemetry.
//
// ROLE is orders (a request for each record), batches (several records with contexts of their own in a request), b3
// (the single header), b3multi, plain (records without a context), relay (a consumer that writes on what it reads, in
// the same trace) or reader (a consumer of every topic). Each appends to OUT a JSON line for a record that it sent or was given:
// who, topic, partition, offset, and the trace and span of the context in the record's headers as OpenTelemetry has them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kotel"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const records = 20

type line struct {
	Role      string `json:"role"`
	Did       string `json:"did"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Trace     string `json:"trace"`
	Span      string `json:"span"`
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func propagator(role string) propagation.TextMapPropagator {
	switch role {
	case "b3":
		return b3.New(b3.WithInjectEncoding(b3.B3SingleHeader))
	case "b3multi":
		return b3.New(b3.WithInjectEncoding(b3.B3MultipleHeader))
	}
	return propagation.TraceContext{}
}

func main() {
	broker, role := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	out, err := os.OpenFile(os.Args[3], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	var lock sync.Mutex
	anyHeader := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, b3.New())
	note := func(did string, r *kgo.Record) {
		found := trace.SpanContextFromContext(anyHeader.Extract(context.Background(), kotel.NewRecordCarrier(r)))
		made := line{Role: role, Did: did, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
		if found.IsValid() {
			made.Trace, made.Span = found.TraceID().String(), found.SpanID().String()
		}
		text, err := json.Marshal(made)
		must(err)
		lock.Lock()
		defer lock.Unlock()
		_, err = fmt.Fprintln(out, string(text))
		must(err)
	}
	options := []kgo.Opt{kgo.SeedBrokers(broker), kgo.ClientID("app-" + role), kgo.FetchMaxWait(500 * time.Millisecond)}
	provider := sdktrace.NewTracerProvider()
	if role != "plain" {
		tracer := kotel.NewTracer(kotel.TracerProvider(provider), kotel.TracerPropagator(propagator(role)))
		options = append(options, kgo.WithHooks(kotel.NewKotel(kotel.WithTracer(tracer)).Hooks()...))
	}
	switch role {
	case "relay":
		options = append(options, kgo.ConsumerGroup("g-relay"), kgo.ConsumeTopics("orders"))
	case "reader":
		options = append(options, kgo.ConsumerGroup("g-reader"), kgo.ConsumeTopics("batches", "b3", "b3multi", "plain", "shipments"))
	case "batches":
		options = append(options, kgo.ProducerLinger(100*time.Millisecond))
	default:
		options = append(options, kgo.ProducerLinger(0))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	defer client.Close()
	sent := func(r *kgo.Record, err error) {
		must(err)
		note("sent", r)
	}
	if role == "relay" || role == "reader" {
		wanted := map[string]int{"relay": records, "reader": 5 * records}[role]
		for seen := 0; seen < wanted && ctx.Err() == nil; {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				seen++
				note("given", r)
				if role == "relay" {
					must(client.ProduceSync(r.Context, &kgo.Record{Topic: "shipments", Value: r.Value, Context: r.Context}).FirstErr())
				}
			})
		}
		must(client.CommitUncommittedOffsets(ctx))
		return
	}
	for i := 0; i < records; i++ {
		record := &kgo.Record{Topic: role, Value: []byte(fmt.Sprintf("%s %d", role, i)), Headers: []kgo.RecordHeader{{Key: "n", Value: []byte{byte(i)}}}}
		if role == "batches" {
			client.Produce(ctx, record, sent)
			if i%5 == 4 {
				must(client.Flush(ctx))
			}
			continue
		}
		done, err := client.ProduceSync(ctx, record).First()
		sent(done, err)
		time.Sleep(40 * time.Millisecond)
	}
	must(client.Flush(ctx))
}
