// SPDX-License-Identifier: Apache-2.0
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Locale;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.fluss.config.ConfigOption;
import org.apache.fluss.config.ConfigOptions;
import org.apache.fluss.metrics.MetricNames;
import org.apache.fluss.rpc.protocol.ApiKeys;
import org.apache.fluss.rpc.protocol.Errors;

/** Prints what a released client knows, in the words of the sources that drift.py reads. Types of fields are not known. */
public final class Facts {
    private static final String MESSAGES = "org/apache/fluss/rpc/messages/";
    private static final String NUMBER = "_FIELD_NUMBER";

    public static void main(String[] arguments) throws Exception {
        System.out.println("--- messages");
        try (JarFile jar = new JarFile(arguments[0])) {
            for (JarEntry entry : java.util.Collections.list(jar.entries())) {
                String name = entry.getName();
                if (name.startsWith(MESSAGES) && name.endsWith(".class") && !name.contains("$")) {
                    message(Class.forName(name.replace(".class", "").replace('/', '.')));
                }
            }
        }
        System.out.println("--- apis");
        for (ApiKeys api : ApiKeys.values()) {
            System.out.printf(
                    "%s(%d, %d, %d, %s)%n",
                    api.name(), api.id, api.lowestSupportedVersion, api.highestSupportedVersion, api.visibility);
        }
        System.out.println("--- errors");
        for (Errors error : Errors.values()) {
            System.out.printf("%s(%d,%n", error.name(), error.code());
        }
        System.out.println("--- options");
        for (Field field : ConfigOptions.class.getFields()) {
            if (field.getType() == ConfigOption.class) {
                System.out.printf("key(\"%s\")%n", ((ConfigOption<?>) field.get(null)).key());
            }
        }
        System.out.println("--- metrics");
        for (Field field : MetricNames.class.getFields()) {
            System.out.printf("String %s = \"%s\"%n", field.getName(), field.get(null));
        }
    }

    private static void message(Class<?> message) throws Exception {
        StringBuilder fields = new StringBuilder();
        for (Field field : message.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && field.getName().endsWith(NUMBER)) {
                field.setAccessible(true);
                String name = field.getName().substring(1).replace(NUMBER, "").toLowerCase(Locale.ROOT);
                fields.append(" optional unknown ").append(name).append(" = ").append(field.getInt(null)).append(";");
            }
        }
        if (fields.length() > 0 || message.getSimpleName().endsWith("Request")) {
            System.out.println("message " + message.getSimpleName() + " {" + fields + " }");
        }
    }
}
