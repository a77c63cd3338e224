// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.apache.fluss.flink.tiering.LakeTieringJobBuilder;

/**
 * Runs SQL statements with the official Flink connector, on an embedded Flink cluster. Takes
 * commands and answers as JSON lines, like the other drivers; rows are answered as Flink prints them: {@code +I[1, a]}.
 */
public final class FlinkDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Row END = Row.of();

    private final Map<String, TableEnvironment> environments = new TreeMap<>();
    private final List<JobClient> jobs = new ArrayList<>();

    private final Configuration configuration;

    private FlinkDriver(Configuration configuration) {
        this.configuration = configuration;
    }

    /** Starts Flink in this process and answers with what leads a job there. */
    private static Configuration startCluster() throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("rest.address", "127.0.0.1");
        configuration.setString("rest.bind-address", "127.0.0.1");
        configuration.setString("rest.port", "0");
        configuration.setString("rest.bind-port", "0");
        configuration.setString("parallelism.default", "1");
        configuration.setString("jobmanager.scheduler", "Default"); // the adaptive one takes longer for small queries
        configuration.setString("table.local-time-zone", "UTC");
        configuration.setString("restart-strategy.type", "disable"); // a failure is an answer, not something to repeat
        MiniCluster cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(configuration)
                                .setNumTaskManagers(1)
                                .setNumSlotsPerTaskManager(8)
                                .build());
        cluster.start();
        configuration.setString("execution.target", "remote");
        configuration.setString("rest.port", String.valueOf(cluster.getRestAddress().get().getPort()));
        return configuration;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        FlinkDriver driver = new FlinkDriver(startCluster());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            Map<String, Object> answer = new TreeMap<>();
            try {
                answer.put("ok", driver.run(JSON.readTree(line)));
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", Map.of("code", -2, "type", error.getClass().getSimpleName(), "message", why(error)));
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0); // threads of jobs that a failed scenario left must not keep the process
    }

    private Object run(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "hello":
                return Map.of("client", "flink");
            case "connect":
                return connect(command);
            case "sql":
                return sql(command.get("mode").asText(), command.get("sql").asText());
            case "follow":
                return follow(command);
            case "tier":
                return tier(command);
            case "start":
                jobs.add(environments.get("streaming").executeSql(command.get("sql").asText()).getJobClient().get());
                return null;
            case "stop":
                for (JobClient job : jobs) {
                    job.cancel().get(30, TimeUnit.SECONDS);
                }
                jobs.clear();
                return null;
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private Object connect(JsonNode command) {
        for (String mode : List.of("batch", "streaming")) {
            EnvironmentSettings.Builder settings = EnvironmentSettings.newInstance().withConfiguration(configuration);
            settings = mode.equals("batch") ? settings.inBatchMode() : settings.inStreamingMode();
            TableEnvironment environment = TableEnvironment.create(settings.build());
            environment.executeSql(command.get("catalog").asText());
            environment.useCatalog("fluss_catalog");
            environments.put(mode, environment);
        }
        return null;
    }

    /** Runs a statement to its end: DDL, an INSERT of given rows, a batch query. */
    private List<String> sql(String mode, String statement) throws Exception {
        TableResult result = environments.get(mode).executeSql(statement);
        List<String> rows = new ArrayList<>();
        if (statement.matches("(?is)(INSERT|UPDATE|DELETE)\\s.*")) {
            result.await();
            return rows;
        }
        try (CloseableIterator<Row> found = result.collect()) {
            found.forEachRemaining(row -> rows.add(row.toString()));
        }
        return rows;
    }

    /** Reads a streaming query until it gave the wanted rows and then nothing more for a moment, or nothing for long. */
    private Object follow(JsonNode command) throws Exception {
        int want = command.get("want").asInt();
        TableResult result = environments.get("streaming").executeSql(command.get("sql").asText());
        JobClient job = result.getJobClient().orElseThrow();
        BlockingQueue<Row> arrived = new LinkedBlockingQueue<>();
        Throwable[] failure = new Throwable[1];
        Thread reader = new Thread(() -> {
            try {
                result.collect().forEachRemaining(arrived::add);
            } catch (Throwable error) {
                failure[0] = error;
            }
            arrived.add(END);
        });
        reader.setDaemon(true);
        reader.start();
        boolean ended = false;
        List<String> rows = new ArrayList<>();
        try {
            if (command.hasNonNull("then")) {
                while (job.getJobStatus().get(30, TimeUnit.SECONDS) != JobStatus.RUNNING) {
                    Thread.sleep(50);
                }
                Thread.sleep(command.get("start_wait_ms").asLong()); // until the source has asked for the end of the log
                for (JsonNode statement : command.get("then")) {
                    sql("batch", statement.asText());
                }
            }
            while (true) {
                long waitMs = command.get(rows.size() < want ? "idle_ms" : "quiet_ms").asLong();
                Row row = arrived.poll(waitMs, TimeUnit.MILLISECONDS);
                ended = row == END;
                if (row == null || ended) {
                    break;
                }
                rows.add(row.toString());
            }
        } finally {
            if (!ended) {
                job.cancel().get(30, TimeUnit.SECONDS);
            }
        }
        if (ended && failure[0] != null) {
            throw new IllegalStateException(why(failure[0]), failure[0]);
        }
        return rows;
    }

    private Object tier(JsonNode command) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.enableCheckpointing(1000);
        jobs.add(
                LakeTieringJobBuilder.newBuilder(
                                environment,
                                fluss(command.get("fluss")),
                                fluss(command.get("lake")),
                                new org.apache.fluss.config.Configuration(),
                                command.get("format").asText())
                        .build());
        return null;
    }

    private static org.apache.fluss.config.Configuration fluss(JsonNode options) {
        Map<String, String> found = new TreeMap<>();
        options.fields().forEachRemaining(one -> found.put(one.getKey(), one.getValue().asText()));
        return org.apache.fluss.config.Configuration.fromMap(found);
    }

    /** The innermost cause: what is around it says only which job failed. */
    private static String why(Throwable error) {
        while (error.getCause() != null && error.getCause() != error) {
            error = error.getCause();
        }
        return error.getClass().getSimpleName() + ": " + error.getMessage();
    }
}
