// clients LIBRARY ROLE NAME BOOTSTRAP SECONDS [TOPIC [RATE [BYTES]]]: what ../clients.py is, with franz-go and sarama.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

const slowAfter = 8 * time.Second

var (
	role, name, group, topic string
	user, instance           = os.Getenv("LAB_USER"), os.Getenv("LAB_INSTANCE")
	servers                  []string
	until, began             time.Time
	pause                    time.Duration
	size                     int
	count                    atomic.Int64
	mu                       sync.Mutex
	failures                 = map[string]bool{}
)

func failed(err error) {
	if err == nil {
		return
	}
	text := err.Error()
	if len(text) > 120 {
		text = text[:120]
	}
	mu.Lock()
	failures[text] = true
	mu.Unlock()
}

func argument(n int, otherwise string) string {
	if len(os.Args) > n {
		return os.Args[n]
	}
	return otherwise
}

// Bytes that no codec makes smaller.
func noise() []byte {
	value := make([]byte, size)
	rand.Read(value)
	return value
}

// What an application does with the records of a poll.
func handle(records int) {
	count.Add(int64(records))
	switch {
	case role == "slow" && time.Since(began) > slowAfter:
		time.Sleep(time.Duration(records) * 500 * time.Millisecond)
	case role == "nopoll" && time.Since(began) > slowAfter:
		time.Sleep(time.Until(until))
	}
}

func franz(ctx context.Context) {
	options := []kgo.Opt{kgo.SeedBrokers(servers...), kgo.ClientID(name)}
	if user != "" {
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: os.Getenv("LAB_PASSWORD")}.AsMechanism()))
	}
	if os.Getenv("LAB_TLS") != "" {
		options = append(options, kgo.DialTLSConfig(&tls.Config{InsecureSkipVerify: true}))
	}
	if role == "produce" {
		client, err := kgo.NewClient(append(options, kgo.ProducerLinger(5*time.Millisecond))...)
		if err != nil {
			failed(err)
			return
		}
		for time.Now().Before(until) {
			client.Produce(ctx, &kgo.Record{Topic: topic, Value: noise()}, func(_ *kgo.Record, err error) {
				failed(err)
				if err == nil {
					count.Add(1)
				}
			})
			time.Sleep(pause)
		}
		end, stop := context.WithTimeout(context.Background(), 4*time.Second)
		defer stop()
		failed(client.Flush(end))
		client.Close()
		return
	}
	options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		failed(err)
		return
	}
	for time.Now().Before(until) {
		fetches := client.PollFetches(ctx)
		for _, one := range fetches.Errors() {
			if ctx.Err() == nil {
				failed(one.Err)
			}
		}
		handle(fetches.NumRecords())
		if ctx.Err() != nil {
			break
		}
	}
	client.Close()
}

type handler struct{}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record, open := <-claim.Messages():
			if !open {
				return nil
			}
			handle(1)
			session.MarkMessage(record, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func shopify(ctx context.Context) {
	config := sarama.NewConfig()
	config.ClientID = name
	config.Version = sarama.V2_8_0_0
	if user != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.User, config.Net.SASL.Password = user, os.Getenv("LAB_PASSWORD")
	}
	config.Net.TLS.Enable = os.Getenv("LAB_TLS") != ""
	config.Consumer.Group.InstanceId = instance
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	config.Consumer.MaxProcessingTime = 500 * time.Millisecond
	if role == "produce" {
		var producer sarama.AsyncProducer
		for {
			one, err := sarama.NewAsyncProducer(servers, config)
			if err == nil {
				producer = one
				break
			}
			failed(err)
			if time.Now().After(until) {
				return
			}
			time.Sleep(time.Second)
		}
		go func() {
			for range producer.Successes() {
				count.Add(1)
			}
		}()
		go func() {
			for err := range producer.Errors() {
				failed(err.Err)
			}
		}()
		for time.Now().Before(until) {
			select {
			case producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(noise())}:
			case <-time.After(time.Until(until)):
			}
			time.Sleep(pause)
		}
		producer.AsyncClose()
		time.Sleep(500 * time.Millisecond)
		return
	}
	for ctx.Err() == nil {
		consumer, err := sarama.NewConsumerGroup(servers, group, config)
		if err != nil {
			failed(err)
			time.Sleep(time.Second)
			continue
		}
		go func() {
			for err := range consumer.Errors() {
				failed(err)
			}
		}()
		for ctx.Err() == nil {
			failed(consumer.Consume(ctx, []string{topic}, handler{}))
		}
		consumer.Close()
	}
}

// Brokers of franz-go: kfake PORT... TOPIC:PARTITIONS..., until it is ended.
func fake() {
	options := []kfake.Opt{}
	ports := []int{}
	for _, word := range os.Args[2:] {
		if topic, partitions, found := strings.Cut(word, ":"); found {
			number, _ := strconv.Atoi(partitions)
			options = append(options, kfake.SeedTopics(int32(number), topic))
		} else {
			port, _ := strconv.Atoi(word)
			ports = append(ports, port)
		}
	}
	options = append(options, kfake.Ports(ports...), kfake.NumBrokers(len(ports)))
	kfake.MustCluster(options...)
	fmt.Println("serves")
	select {}
}

func main() {
	library := os.Args[1]
	if library == "kfake" {
		fake()
	}
	role, name = os.Args[2], os.Args[3]
	servers = strings.Split(os.Args[4], ",")
	seconds, _ := strconv.ParseFloat(os.Args[5], 64)
	topic = argument(6, "orders")
	rate, _ := strconv.ParseFloat(argument(7, "4"), 64)
	size, _ = strconv.Atoi(argument(8, "100"))
	pause = time.Duration(float64(time.Second) / rate)
	group = os.Getenv("LAB_GROUP")
	began = time.Now()
	until = began.Add(time.Duration(seconds * float64(time.Second)))
	ctx, stop := context.WithDeadline(context.Background(), until)
	defer stop()
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGTERM)
	go func() { <-quit; stop() }()
	if library == "franz-go" {
		franz(ctx)
	} else {
		shopify(ctx)
	}
	mu.Lock()
	texts := []string{}
	for text := range failures {
		texts = append(texts, text)
	}
	sort.Strings(texts)
	fmt.Println(name, count.Load(), texts)
}
