import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.time.*;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

/**
 * Worker BOOTSTRAP OUT SPEC [+ SPEC]...: what clients.py is, with Kafka's own clients; a thread a client. The role
 * `admin` reads orders from standard input and answers each by a line: `create TOPIC NODE...`, `move TOPIC NODE...`
 * (these replicas, the first of them leads), `describe TOPIC ID...` (what its leader says of producers, and their coordinator).
 */
public class Worker {
    static String servers;
    static Path out;

    static synchronized void write(String lines) throws Exception {
        Files.writeString(out, lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    static long now() {
        Instant at = Instant.now();
        return at.getEpochSecond() * 1_000_000_000L + at.getNano();
    }

    static byte[] value() {
        byte[] made = new byte[68];
        Arrays.fill(made, (byte) 'x');
        ByteBuffer.wrap(made).putLong(now());
        return made;
    }

    static Properties settings(String client) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        made.put("client.id", client);
        made.put("metadata.max.age.ms", "500");
        made.put("enable.metrics.push", "false");
        return made;
    }

    static KafkaProducer<byte[], byte[]> producer(Properties made) {
        return new KafkaProducer<>(made, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void produce(String topic, Map<String, String> s, long end) throws Exception {
        Properties made = settings("p-" + topic);
        made.put("acks", s.getOrDefault("acks", "all"));
        made.put("linger.ms", s.getOrDefault("linger", "0"));
        made.put("compression.type", s.getOrDefault("codec", "none"));
        try (KafkaProducer<byte[], byte[]> client = producer(made)) {
            client.partitionsFor(topic);
            while (System.currentTimeMillis() < end) {
                client.send(new ProducerRecord<>(topic, value()));
                Thread.sleep(Integer.parseInt(s.get("every")));
            }
        }
    }

    static void consume(String topic, Map<String, String> s, long end) throws Exception {
        String group = s.get("group");
        Properties made = settings("c" + group.substring(1));
        made.put("group.id", group);
        made.put("auto.offset.reset", s.containsKey("latest") ? "latest" : "earliest");
        made.put("isolation.level", s.containsKey("committed") ? "read_committed" : "read_uncommitted");
        made.put("client.rack", s.getOrDefault("rack", ""));
        long half = (System.currentTimeMillis() + end) / 2;
        boolean rewinds = s.containsKey("rewinds");
        try (var client = new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            client.subscribe(List.of(topic));
            while (System.currentTimeMillis() < end) {
                long began = now();
                ConsumerRecords<byte[], byte[]> found = client.poll(Duration.ofMillis(500));
                long ended = now();
                StringBuilder lines = new StringBuilder();
                for (ConsumerRecord<byte[], byte[]> one : found)
                    lines.append(String.format("[\"%s\", \"%s\", %d, %d, %d, %d, %d]%n", group, one.topic(), one.partition(),
                        one.offset(), ByteBuffer.wrap(one.value()).getLong(), began, ended));
                write(lines.toString());
                if (!found.isEmpty()) Thread.sleep(Integer.parseInt(s.getOrDefault("works", "0")));
                if (rewinds && System.currentTimeMillis() > half) {
                    client.seek(new TopicPartition(topic, 0), 0);
                    rewinds = false;
                }
            }
        }
    }

    static void transact(String topic, Map<String, String> s, List<String> steps) throws Exception {
        Properties made = settings(s.get("client"));
        made.put("transactional.id", s.get("id"));
        made.put("transaction.timeout.ms", s.get("timeout"));
        made.put("linger.ms", "0");
        try (KafkaProducer<byte[], byte[]> client = producer(made)) {
            client.initTransactions();
            for (String step : steps) {
                String word = step.split(":")[0];
                int count = step.contains(":") ? Integer.parseInt(step.split(":")[1]) : 0;
                long began = now();
                String error = null;
                try {
                    switch (word) {
                        case "begin" -> client.beginTransaction();
                        case "send" -> {
                            List<java.util.concurrent.Future<RecordMetadata>> sent = new ArrayList<>();
                            for (int i = 0; i < count; i++) sent.add(client.send(new ProducerRecord<>(topic, value())));
                            client.flush();
                            for (var one : sent) one.get();
                        }
                        case "sleep" -> Thread.sleep(count);
                        case "commit" -> client.commitTransaction();
                        case "abort" -> client.abortTransaction();
                    }
                } catch (Exception problem) {
                    error = (problem.getCause() == null ? problem : problem.getCause()).toString();
                }
                write(String.format("{\"client\": \"%s\", \"id\": \"%s\", \"topic\": \"%s\", \"step\": \"%s\", \"count\": %d, \"began\": %d, "
                    + "\"ended\": %d, \"error\": %s}%n", s.get("client"), s.get("id"), topic, word, count, began, now(),
                    error == null ? "null" : '"' + error.replace("\"", "'").replace("\n", " ") + '"'));
            }
        }
    }

    static void admin() throws Exception {
        Scanner orders = new Scanner(System.in);
        try (Admin admin = Admin.create(settings("admin"))) {
            admin.describeCluster().nodes().get();
            System.out.println("ready");
            while (orders.hasNextLine()) {
                String[] words = orders.nextLine().split(" ");
                String said = order(admin, words);
                System.out.println(said);
            }
        }
    }

    static String order(Admin admin, String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        switch (words[0]) {
            case "create" -> {
                List<Integer> nodes = Arrays.stream(words).skip(2).map(Integer::valueOf).toList();
                admin.createTopics(List.of(new NewTopic(words[1], Map.of(0, nodes)))).all().get();
            }
            case "move" -> {
                List<Integer> nodes = Arrays.stream(words).skip(2).map(Integer::valueOf).toList();
                admin.alterPartitionReassignments(Map.of(place, Optional.of(new NewPartitionReassignment(nodes)))).all().get();
                admin.electLeaders(ElectionType.PREFERRED, Set.of(place)).all().get();
            }
            case "describe" -> {
                StringBuilder said = new StringBuilder();
                for (ProducerState one : admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers())
                    said.append(String.format("%s{\"producer_id\": %d, \"epoch\": %d, \"began_at_offset\": %d}", said.isEmpty() ? "" : ", ",
                        one.producerId(), one.producerEpoch(), one.currentTransactionStartOffset().orElse(-1)));
                StringBuilder ids = new StringBuilder();
                for (int i = 2; i < words.length; i++) {
                    TransactionDescription one = admin.describeTransactions(List.of(words[i])).description(words[i]).get();
                    ids.append(String.format("%s{\"id\": \"%s\", \"producer_id\": %d, \"state\": \"%s\", \"partitions\": %d}",
                        ids.isEmpty() ? "" : ", ", words[i], one.producerId(), one.state(), one.topicPartitions().size()));
                }
                return String.format("{\"step\": \"described\", \"topic\": \"%s\", \"at\": %d, \"producers\": [%s], \"transactions\": [%s]}",
                    words[1], now(), said, ids);
            }
        }
        return "done " + now();
    }

    static void run(List<String> spec) throws Exception {
        Map<String, String> s = new HashMap<>();
        List<String> steps = new ArrayList<>();
        for (String word : spec.subList(Math.min(2, spec.size()), spec.size())) {
            if (word.contains("=")) s.put(word.split("=")[0], word.split("=")[1]);
            else steps.add(word);
        }
        Thread.sleep(Integer.parseInt(s.getOrDefault("after", "0")));
        long end = System.currentTimeMillis() + Integer.parseInt(s.getOrDefault("for", "0"));
        switch (spec.get(0)) {
            case "produce" -> produce(spec.get(1), s, end);
            case "consume" -> consume(spec.get(1), s, end);
            case "transact" -> transact(spec.get(1), s, steps);
            case "admin" -> admin();
        }
    }

    public static void main(String[] words) throws Exception {
        servers = words[0];
        out = Path.of(words[1]);
        List<Thread> all = new ArrayList<>();
        List<String> spec = new ArrayList<>();
        List<String> given = new ArrayList<>(List.of(words).subList(2, words.length));
        given.add("+");
        for (String word : given) {
            if (!word.equals("+")) {
                spec.add(word);
                continue;
            }
            List<String> mine = List.copyOf(spec);
            spec.clear();
            Thread one = new Thread(() -> {
                try {
                    run(mine);
                } catch (Exception problem) {
                    problem.printStackTrace();
                    System.exit(1);
                }
            });
            one.start();
            all.add(one);
        }
        for (Thread one : all) one.join();
    }
}
