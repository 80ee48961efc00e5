import java.time.*;
import java.util.*;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

/** Lab ROLE NAME BOOTSTRAP SECONDS [TOPIC [RATE [BYTES]]]: what clients.py is, with Kafka's own client. */
public class Lab {
    static final long SLOW_AFTER_MS = 8000;
    static final String POLL_MS = "6000";
    static final AtomicLong count = new AtomicLong();
    static final Set<String> errors = new ConcurrentSkipListSet<>();
    static final Map<String, String> env = System.getenv();
    static String role, name, bootstrap, topic;
    static long began, until;

    static void failed(Throwable error) {
        String text = error.toString();
        errors.add(text.substring(0, Math.min(120, text.length())));
    }

    static Properties settings() {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        made.put("client.id", name);
        made.put("enable.metrics.push", "false");
        String user = env.get("LAB_USER");
        if (user != null) {
            made.put("security.protocol", "SASL_PLAINTEXT");
            made.put("sasl.mechanism", "PLAIN");
            made.put("sasl.jaas.config", String.format("org.apache.kafka.common.security.plain.PlainLoginModule required "
                + "username=\"%s\" password=\"%s\";", user, env.get("LAB_PASSWORD")));
        } else if (env.containsKey("LAB_TLS")) {
            made.put("security.protocol", "SSL");
        }
        return made;
    }

    static void produce(double rate, int size) throws Exception {
        Properties made = settings();
        made.put("linger.ms", "5");
        made.put("max.block.ms", "20000");
        int sent = 0;
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(made, new ByteArraySerializer(), new ByteArraySerializer());
        while (System.currentTimeMillis() < until) {
            try {
                // with a key: without one a partition gets 16 kB before the next one gets anything
                byte[] key = Integer.toString(sent++).getBytes();
                producer.send(new ProducerRecord<>(topic, key, new byte[size]), (done, error) -> {
                    if (error == null) count.incrementAndGet();
                    else failed(error);
                });
            } catch (Exception error) {
                failed(error);
            }
            Thread.sleep((long) (1000 / rate));
        }
        producer.close(Duration.ofSeconds(5));
    }

    static void consume() throws Exception {
        Properties made = settings();
        made.put("group.id", env.get("LAB_GROUP"));
        made.put("auto.offset.reset", "latest");
        if (role.equals("nopoll")) made.put("max.poll.interval.ms", POLL_MS);
        if (env.containsKey("LAB_INSTANCE")) made.put("group.instance.id", env.get("LAB_INSTANCE"));
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        while (System.currentTimeMillis() < until) {
            try {
                handle(consumer.poll(Duration.ofMillis(300)).count());
            } catch (org.apache.kafka.common.KafkaException error) {
                failed(error);
                Thread.sleep(100);
            }
        }
        consumer.close(CloseOptions.timeout(Duration.ofSeconds(5)));
    }

    /** What an application does with the records of a poll. */
    static void handle(int records) throws InterruptedException {
        count.addAndGet(records);
        if (records == 0 || System.currentTimeMillis() < began + SLOW_AFTER_MS) return;
        if (role.equals("slow")) Thread.sleep(500L * records);
        if (role.equals("nopoll")) Thread.sleep(Math.max(0, until - System.currentTimeMillis()));
    }

    static String argument(String[] words, int n, String otherwise) {
        return words.length > n ? words[n] : otherwise;
    }

    public static void main(String[] words) {
        role = words[0];
        name = words[1];
        bootstrap = words[2];
        began = System.currentTimeMillis();
        until = began + (long) (1000 * Double.parseDouble(words[3]));
        topic = argument(words, 4, "orders");
        try {
            if (role.equals("produce"))
                produce(Double.parseDouble(argument(words, 5, "4")), Integer.parseInt(argument(words, 6, "100")));
            else consume();
        } catch (Exception error) {
            failed(error);
        }
        System.out.println(name + " " + count + " " + errors);
        System.exit(0);
    }
}
