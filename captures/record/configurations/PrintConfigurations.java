import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Collection;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;

/**
 * Prints "name,type,values" of every configuration that the ConfigDefs of one Kafka release define, in order of names.
 * The values, with | between them, are those that a ValidString or ValidList accepts; any other configuration has none.
 */
public class PrintConfigurations {
    /** Classes that hold definitions; a release has some of them. Those of brokers first: their word counts. */
    static final String[] CLASSES = {
        "kafka.server.KafkaConfig", "org.apache.kafka.server.config.AbstractKafkaConfig",
        "kafka.log.LogConfig", "org.apache.kafka.storage.internals.log.LogConfig",
        "org.apache.kafka.server.config.QuotaConfig", "org.apache.kafka.server.config.QuotaConfigs",
        "kafka.server.DynamicConfig$Broker", "kafka.server.DynamicConfig$Client", "kafka.server.DynamicConfig$User",
        "kafka.server.DynamicConfig$Ip", "org.apache.kafka.coordinator.group.GroupConfig",
        "org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig",
        "org.apache.kafka.server.metrics.ClientMetricsConfigs", "org.apache.kafka.server.config.DynamicBrokerConfig",
    };

    public static void main(String[] args) {
        TreeMap<String, String> found = new TreeMap<>();
        for (String name : CLASSES) {
            try {
                Class<?> type = Class.forName(name);
                for (Method method : type.getMethods())
                    if (Modifier.isStatic(method.getModifiers()) && method.getParameterCount() == 0
                            && ConfigDef.class.isAssignableFrom(method.getReturnType()))
                        add(found, (ConfigDef) method.invoke(null));
                for (Field field : type.getDeclaredFields())
                    if (Modifier.isStatic(field.getModifiers()) && ConfigDef.class.isAssignableFrom(field.getType())) {
                        field.setAccessible(true);
                        add(found, (ConfigDef) field.get(null));
                    }
                if (!name.startsWith("kafka."))
                    continue;
                Class<?> module = Class.forName(name + "$"); // a Scala object
                Object single = module.getField("MODULE$").get(null);
                for (Field field : module.getDeclaredFields())
                    if (ConfigDef.class.isAssignableFrom(field.getType())) {
                        field.setAccessible(true);
                        add(found, (ConfigDef) field.get(Modifier.isStatic(field.getModifiers()) ? null : single));
                    }
            } catch (ReflectiveOperationException | LinkageError absent) {
                System.err.println(name + ": " + absent);
            }
        }
        found.forEach((name, type) -> System.out.println(name + "," + type));
    }

    static void add(TreeMap<String, String> found, ConfigDef definitions) {
        if (definitions != null)
            definitions.configKeys().forEach((name, key) -> found.putIfAbsent(
                name, key.type.name().toLowerCase() + "," + String.join("|", new TreeSet<>(values(key.validator)))));
    }

    /** The words that a validator accepts: it keeps them in a private field, a ValidList in one of a ValidString. */
    static Collection<String> values(Object validator) {
        TreeSet<String> words = new TreeSet<>();
        if (validator == null || !validator.getClass().getSimpleName().matches("(CaseInsensitive)?Valid(String|List)"))
            return words;
        for (Field field : validator.getClass().getDeclaredFields())
            try {
                field.setAccessible(true);
                Object value = field.get(validator);
                if (value instanceof Collection)
                    for (Object word : (Collection<?>) value)
                        words.add(String.valueOf(word));
                else
                    words.addAll(values(value));
            } catch (IllegalAccessException impossible) {
                throw new AssertionError(impossible);
            }
        return words;
    }
}
