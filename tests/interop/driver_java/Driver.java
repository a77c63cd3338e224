// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.lookup.Lookup;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.Upsert;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.cluster.ServerNode;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.exception.ApiException;
import org.apache.fluss.metadata.AggFunction;
import org.apache.fluss.metadata.AggFunctionType;
import org.apache.fluss.metadata.AggFunctions;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.DatabaseInfo;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.rpc.protocol.Errors;
import org.apache.fluss.security.acl.AccessControlEntry;
import org.apache.fluss.security.acl.AccessControlEntryFilter;
import org.apache.fluss.security.acl.AclBinding;
import org.apache.fluss.security.acl.AclBindingFilter;
import org.apache.fluss.security.acl.FlussPrincipal;
import org.apache.fluss.security.acl.OperationType;
import org.apache.fluss.security.acl.PermissionType;
import org.apache.fluss.security.acl.Resource;
import org.apache.fluss.security.acl.ResourceFilter;
import org.apache.fluss.security.acl.ResourceType;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.fluss.types.DataType;
import org.apache.fluss.utils.CloseableIterator;
import org.apache.fluss.utils.json.DataTypeJsonSerde;

/** The Java client behind the interop protocol: one JSON command per line in, one JSON answer per line out. */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long WAIT_S = 60;

    private final String name;
    private Connection connection;
    private Admin admin;

    private Driver(String name) {
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err); // whatever a library prints must not get between the answers
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Driver driver = new Driver(arguments[0]);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                JsonNode command = JSON.readTree(line);
                answer.put("ok", driver.execute(command.get("op").asText(), command));
            } catch (Throwable thrown) {
                answer.put("error", describe(thrown));
            }
            out.println(JSON.writeValueAsString(answer));
        }
        driver.disconnect();
        System.exit(0);
    }

    private static Map<String, Object> describe(Throwable thrown) {
        int code = -2;
        Throwable found = thrown;
        for (Throwable t = thrown; t != null; t = t.getCause()) {
            if (t instanceof ApiException) {
                found = t;
                code = Errors.forException(t).code();
                break;
            }
        }
        if (found == thrown) {
            thrown.printStackTrace();
        }
        Map<String, Object> error = new LinkedHashMap<>();
        error.put("code", code);
        error.put("type", found.getClass().getSimpleName());
        error.put("message", String.valueOf(found.getMessage()));
        return error;
    }

    private Object execute(String op, JsonNode c) throws Exception {
        switch (op) {
            case "hello":
                return Map.of("client", name);
            case "connect":
                return connect(c);
            case "disconnect":
                disconnect();
                return null;
            case "server_nodes":
                return serverNodes();
            case "create_database":
                return createDatabase(c);
            case "drop_database":
                return get(admin.dropDatabase(text(c, "db"), flag(c, "ignore"), c.path("cascade").asBoolean(true)));
            case "database_exists":
                return get(admin.databaseExists(text(c, "db")));
            case "list_databases":
                return get(admin.listDatabases());
            case "database_info":
                return databaseInfo(text(c, "db"));
            case "create_table":
                return get(admin.createTable(path(c), descriptor(c), flag(c, "ignore")));
            case "drop_table":
                return get(admin.dropTable(path(c), flag(c, "ignore")));
            case "table_exists":
                return get(admin.tableExists(path(c)));
            case "list_tables":
                return get(admin.listTables(text(c, "db")));
            case "table_info":
                return tableInfo(get(admin.getTableInfo(path(c))));
            case "alter_table":
                return get(admin.alterTable(path(c), changes(c), flag(c, "ignore")));
            case "create_partition":
                return get(admin.createPartition(path(c), new PartitionSpec(strings(c.get("spec"))), flag(c, "ignore")));
            case "drop_partition":
                return get(admin.dropPartition(path(c), new PartitionSpec(strings(c.get("spec"))), flag(c, "ignore")));
            case "list_partitions":
                return partitionNames(c);
            case "list_offsets":
                return listOffsets(c);
            case "lake_snapshot":
                return get(admin.getLatestLakeSnapshot(path(c))).getSnapshotId();
            case "append":
                return append(c);
            case "upsert":
                return upsert(c);
            case "delete":
                return delete(c);
            case "lookup":
                return lookup(c);
            case "prefix_lookup":
                return prefixLookup(c);
            case "scan":
                return scan(c);
            case "limit_scan":
                return limitScan(c);
            case "kv_snapshots":
                return kvSnapshots(c);
            case "snapshot_scan":
                return snapshotScan(c);
            case "create_acl":
                get(admin.createAcls(List.of(binding(c))).all());
                return null;
            case "list_acls":
                return listAcls(c);
            case "drop_acl":
                return get(admin.dropAcls(List.of(filter(binding(c)))).all()).size();
            default:
                throw new IllegalArgumentException("unknown command " + op);
        }
    }

    // ---------------------------------------------------------------- connection and databases

    private Object connect(JsonNode c) throws Exception {
        disconnect();
        Configuration config = new Configuration();
        config.setString("bootstrap.servers", text(c, "bootstrap"));
        config.setString("client.writer.batch-timeout", "20 ms");
        if (c.hasNonNull("user")) {
            config.setString("client.security.protocol", "SASL");
            config.setString("client.security.sasl.mechanism", "PLAIN");
            config.setString("client.security.sasl.username", text(c, "user"));
            config.setString("client.security.sasl.password", text(c, "password"));
        }
        connection = ConnectionFactory.createConnection(config);
        try {
            admin = connection.getAdmin();
            get(admin.getServerNodes());
        } catch (Exception failed) {
            disconnect();
            throw failed;
        }
        return null;
    }

    private void disconnect() throws Exception {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    private Object serverNodes() throws Exception {
        List<Object> nodes = new ArrayList<>();
        for (ServerNode node : get(admin.getServerNodes())) {
            nodes.add(Arrays.asList(node.serverType().toString(), node.id(), node.host(), node.port()));
        }
        return nodes;
    }

    private Object createDatabase(JsonNode c) throws Exception {
        DatabaseDescriptor.Builder builder = DatabaseDescriptor.builder();
        if (c.hasNonNull("comment")) {
            builder.comment(text(c, "comment"));
        }
        builder.customProperties(strings(c.path("custom")));
        return get(admin.createDatabase(text(c, "db"), builder.build(), flag(c, "ignore")));
    }

    private Object databaseInfo(String name) throws Exception {
        DatabaseInfo info = get(admin.getDatabaseInfo(name));
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("db", info.getDatabaseName());
        answer.put("comment", info.getDatabaseDescriptor().getComment().orElse(null));
        answer.put("custom", info.getDatabaseDescriptor().getCustomProperties());
        return answer;
    }

    // ---------------------------------------------------------------- tables

    private static TablePath path(JsonNode c) {
        return TablePath.of(text(c.get("table"), "db"), text(c.get("table"), "name"));
    }

    private static List<String> names(JsonNode c) {
        List<String> found = new ArrayList<>();
        c.get("table").get("columns").forEach(column -> found.add(text(column, "name")));
        return found;
    }

    private static List<DataType> types(JsonNode c, List<String> wanted) {
        Map<String, DataType> all = new HashMap<>();
        c.get("table")
                .get("columns")
                .forEach(column -> all.put(text(column, "name"), DataTypeJsonSerde.INSTANCE.deserialize(column.get("type"))));
        List<DataType> found = new ArrayList<>();
        wanted.forEach(name -> found.add(all.get(name)));
        return found;
    }

    private static TableDescriptor descriptor(JsonNode c) {
        JsonNode table = c.get("table");
        Schema.Builder schema = Schema.newBuilder();
        for (JsonNode column : table.get("columns")) {
            DataType type = DataTypeJsonSerde.INSTANCE.deserialize(column.get("type"));
            if (column.hasNonNull("agg")) {
                schema.column(text(column, "name"), type, aggregate(column.get("agg")));
            } else {
                schema.column(text(column, "name"), type);
            }
            if (column.hasNonNull("comment")) {
                schema.withComment(text(column, "comment"));
            }
        }
        if (table.path("primary_key").size() > 0) {
            schema.primaryKey(list(table.get("primary_key")));
        }
        if (table.hasNonNull("auto_increment")) {
            schema.enableAutoIncrement(text(table, "auto_increment"));
        }
        TableDescriptor.Builder builder = TableDescriptor.builder().schema(schema.build());
        builder.partitionedBy(list(table.path("partition_keys")));
        builder.distributedBy(
                table.hasNonNull("buckets") ? table.get("buckets").asInt() : null, list(table.path("bucket_keys")));
        if (table.hasNonNull("comment")) {
            builder.comment(text(table, "comment"));
        }
        builder.properties(strings(table.path("properties")));
        builder.customProperties(strings(table.path("custom")));
        return builder.build();
    }

    private static AggFunction aggregate(JsonNode node) {
        AggFunctionType type = AggFunctionType.fromString(text(node, "type"));
        return AggFunctions.of(type, strings(node.path("parameters")));
    }

    private static Object tableInfo(TableInfo info) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("columns", info.getSchema().getColumnNames());
        answer.put("primary_key", info.getPrimaryKeys());
        answer.put("bucket_keys", info.getBucketKeys());
        answer.put("partition_keys", info.getPartitionKeys());
        answer.put("buckets", info.getNumBuckets());
        answer.put("comment", info.getComment().orElse(null));
        answer.put("schema_id", info.getSchemaId());
        answer.put("properties", new TreeMap<>(info.getProperties().toMap()));
        answer.put("custom", new TreeMap<>(info.getCustomProperties().toMap()));
        return answer;
    }

    private static List<TableChange> changes(JsonNode c) {
        List<TableChange> changes = new ArrayList<>();
        for (JsonNode column : c.path("add_columns")) {
            changes.add(
                    TableChange.addColumn(
                            text(column, "name"),
                            DataTypeJsonSerde.INSTANCE.deserialize(column.get("type")),
                            column.hasNonNull("comment") ? text(column, "comment") : null,
                            TableChange.ColumnPosition.last()));
        }
        strings(c.path("set")).forEach((key, value) -> changes.add(TableChange.set(key, value)));
        list(c.path("reset")).forEach(key -> changes.add(TableChange.reset(key)));
        return changes;
    }

    private List<PartitionInfo> partitions(JsonNode c) throws Exception {
        return c.hasNonNull("spec")
                ? get(admin.listPartitionInfos(path(c), new PartitionSpec(strings(c.get("spec")))))
                : get(admin.listPartitionInfos(path(c)));
    }

    private Object partitionNames(JsonNode c) throws Exception {
        List<String> found = new ArrayList<>();
        partitions(c).forEach(one -> found.add(one.getPartitionName()));
        Collections.sort(found);
        return found;
    }

    private Object listOffsets(JsonNode c) throws Exception {
        JsonNode spec = c.get("spec");
        OffsetSpec wanted;
        if (spec.isNumber()) {
            wanted = new OffsetSpec.TimestampSpec(spec.asLong());
        } else if (spec.asText().equals("latest")) {
            wanted = new OffsetSpec.LatestSpec();
        } else {
            wanted = new OffsetSpec.EarliestSpec();
        }
        List<Integer> buckets = integers(c.get("buckets"));
        Map<Integer, Long> found =
                c.hasNonNull("partition")
                        ? get(admin.listOffsets(path(c), text(c, "partition"), buckets, wanted).all())
                        : get(admin.listOffsets(path(c), buckets, wanted).all());
        List<Object> answer = new ArrayList<>();
        new TreeMap<>(found).forEach((bucket, offset) -> answer.add(List.of(bucket, offset)));
        return answer;
    }

    // ---------------------------------------------------------------- writes and point reads

    private Object append(JsonNode c) throws Exception {
        List<DataType> types = types(c, names(c));
        try (Table table = connection.getTable(path(c))) {
            AppendWriter writer = table.newAppend().createWriter();
            List<CompletableFuture<?>> pending = new ArrayList<>();
            for (JsonNode row : c.get("rows")) {
                pending.add(writer.append(Values.row(row, types)));
            }
            writer.flush();
            return finish(pending);
        }
    }

    private Object upsert(JsonNode c) throws Exception {
        List<String> all = names(c);
        List<String> columns = c.hasNonNull("columns") ? list(c.get("columns")) : all;
        List<DataType> types = types(c, columns);
        try (Table table = connection.getTable(path(c))) {
            Upsert upsert = table.newUpsert();
            if (c.hasNonNull("columns")) {
                upsert = upsert.partialUpdate(columns.toArray(new String[0]));
            }
            UpsertWriter writer = upsert.createWriter();
            List<CompletableFuture<?>> pending = new ArrayList<>();
            for (JsonNode row : c.get("rows")) {
                GenericRow full = new GenericRow(all.size());
                for (int i = 0; i < columns.size(); i++) {
                    full.setField(all.indexOf(columns.get(i)), Values.decode(row.get(i), types.get(i)));
                }
                pending.add(writer.upsert(full));
            }
            writer.flush();
            return finish(pending);
        }
    }

    private Object delete(JsonNode c) throws Exception {
        List<String> all = names(c);
        List<String> keys = list(c.get("table").get("primary_key"));
        List<DataType> types = types(c, keys);
        try (Table table = connection.getTable(path(c))) {
            UpsertWriter writer = table.newUpsert().createWriter();
            List<CompletableFuture<?>> pending = new ArrayList<>();
            for (JsonNode key : c.get("keys")) {
                GenericRow full = new GenericRow(all.size());
                for (int i = 0; i < keys.size(); i++) {
                    full.setField(all.indexOf(keys.get(i)), Values.decode(key.get(i), types.get(i)));
                }
                pending.add(writer.delete(full));
            }
            writer.flush();
            return finish(pending);
        }
    }

    private static Object finish(List<CompletableFuture<?>> pending) throws Exception {
        for (CompletableFuture<?> one : pending) {
            get(one);
        }
        return pending.size();
    }

    private Object lookup(JsonNode c) throws Exception {
        List<DataType> keyTypes = types(c, list(c.get("table").get("primary_key")));
        List<DataType> types = types(c, names(c));
        try (Table table = connection.getTable(path(c))) {
            Lookuper lookuper = table.newLookup().createLookuper();
            // All at once: the client waits a while for more keys before it sends a lookup.
            List<CompletableFuture<LookupResult>> pending = new ArrayList<>();
            for (JsonNode key : c.get("keys")) {
                pending.add(lookuper.lookup(Values.row(key, keyTypes)));
            }
            List<Object> found = new ArrayList<>();
            for (CompletableFuture<LookupResult> one : pending) {
                found.add(Values.canonical(get(one).getSingletonRow(), types));
            }
            return found;
        }
    }

    private Object prefixLookup(JsonNode c) throws Exception {
        List<String> by = list(c.get("by"));
        List<DataType> keyTypes = types(c, by);
        List<DataType> types = types(c, names(c));
        try (Table table = connection.getTable(path(c))) {
            Lookup lookup = table.newLookup().lookupBy(by);
            Lookuper lookuper = lookup.createLookuper();
            List<Object> found = new ArrayList<>();
            for (JsonNode key : c.get("keys")) {
                List<Object> rows = new ArrayList<>();
                for (InternalRow row : get(lookuper.lookup(Values.row(key, keyTypes))).getRowList()) {
                    rows.add(Values.canonical(row, types));
                }
                found.add(rows);
            }
            return found;
        }
    }

    // ---------------------------------------------------------------- scans

    private Object scan(JsonNode c) throws Exception {
        List<String> columns = c.hasNonNull("project") ? list(c.get("project")) : names(c);
        List<DataType> types = types(c, columns);
        Map<Long, String> partitions = new TreeMap<>();
        boolean partitioned = c.get("table").path("partition_keys").size() > 0;
        if (partitioned) {
            partitions(c).forEach(one -> partitions.put(one.getPartitionId(), one.getPartitionName()));
        }
        int want = c.get("want").asInt();
        long idleMs = c.path("idle_ms").asLong(3000);
        List<Object> found = new ArrayList<>();
        try (Table table = connection.getTable(path(c))) {
            Scan scan = table.newScan();
            if (c.hasNonNull("project")) {
                scan = scan.project(columns);
            }
            try (LogScanner scanner = scan.createLogScanner()) {
                for (int bucket : integers(c.get("buckets"))) {
                    long start = c.path("start").path(String.valueOf(bucket)).asLong(LogScanner.EARLIEST_OFFSET);
                    if (partitioned) {
                        for (long partition : partitions.keySet()) {
                            scanner.subscribe(partition, bucket, start);
                        }
                    } else {
                        scanner.subscribe(bucket, start);
                    }
                }
                long quietSince = System.nanoTime();
                boolean extra = false;
                while (true) {
                    ScanRecords records = scanner.poll(Duration.ofMillis(300));
                    for (TableBucket bucket : records.buckets()) {
                        for (ScanRecord record : records.records(bucket)) {
                            List<Object> one = new ArrayList<>();
                            one.add(partitioned ? partitions.get(bucket.getPartitionId()) : null);
                            one.add(bucket.getBucket());
                            one.add(record.logOffset());
                            one.add(record.getChangeType().shortString());
                            one.add(Values.canonical(record.getRow(), types));
                            found.add(one);
                        }
                    }
                    if (!records.isEmpty()) {
                        quietSince = System.nanoTime();
                    } else if (found.size() >= want && extra
                            || System.nanoTime() - quietSince > TimeUnit.MILLISECONDS.toNanos(idleMs)) {
                        return found;
                    }
                    extra = found.size() >= want;
                }
            }
        }
    }

    private Object limitScan(JsonNode c) throws Exception {
        List<String> columns = c.hasNonNull("project") ? list(c.get("project")) : names(c);
        List<DataType> types = types(c, columns);
        try (Table table = connection.getTable(path(c))) {
            Scan scan = table.newScan();
            if (c.hasNonNull("project")) {
                scan = scan.project(columns);
            }
            TableBucket bucket = bucket(c, table);
            return all(scan.limit(c.get("limit").asInt()).createBatchScanner(bucket), types);
        }
    }

    private TableBucket bucket(JsonNode c, Table table) throws Exception {
        long tableId = table.getTableInfo().getTableId();
        int bucketId = c.get("bucket").asInt();
        if (c.hasNonNull("partition")) {
            for (PartitionInfo one : partitions(c)) {
                if (one.getPartitionName().equals(text(c, "partition"))) {
                    return new TableBucket(tableId, one.getPartitionId(), bucketId);
                }
            }
        }
        return new TableBucket(tableId, bucketId);
    }

    private static List<Object> all(BatchScanner scanner, List<DataType> types) throws Exception {
        List<Object> rows = new ArrayList<>();
        try (BatchScanner closing = scanner) {
            CloseableIterator<InternalRow> batch;
            while ((batch = closing.pollBatch(Duration.ofSeconds(5))) != null) {
                while (batch.hasNext()) {
                    rows.add(Values.canonical(batch.next(), types));
                }
                batch.close();
            }
        }
        return rows;
    }

    private Object kvSnapshots(JsonNode c) throws Exception {
        KvSnapshots found =
                c.hasNonNull("partition")
                        ? get(admin.getLatestKvSnapshots(path(c), text(c, "partition")))
                        : get(admin.getLatestKvSnapshots(path(c)));
        List<Object> answer = new ArrayList<>();
        for (int bucket : new java.util.TreeSet<>(found.getBucketIds())) {
            Object id = found.getSnapshotId(bucket).isPresent() ? found.getSnapshotId(bucket).getAsLong() : null;
            Object offset = found.getLogOffset(bucket).isPresent() ? found.getLogOffset(bucket).getAsLong() : null;
            answer.add(Arrays.asList(bucket, id, offset));
        }
        return answer;
    }

    private Object snapshotScan(JsonNode c) throws Exception {
        List<String> columns = c.hasNonNull("project") ? list(c.get("project")) : names(c);
        List<DataType> types = types(c, columns);
        try (Table table = connection.getTable(path(c))) {
            Scan scan = table.newScan();
            if (c.hasNonNull("project")) {
                scan = scan.project(columns);
            }
            return all(scan.createBatchScanner(bucket(c, table), c.get("snapshot").asLong()), types);
        }
    }

    // ---------------------------------------------------------------- access control

    private static AclBinding binding(JsonNode c) {
        JsonNode acl = c.get("acl");
        return new AclBinding(
                new Resource(ResourceType.valueOf(text(acl, "resource_type")), text(acl, "resource")),
                new AccessControlEntry(
                        new FlussPrincipal(text(acl, "user"), "User"),
                        "*",
                        OperationType.valueOf(text(acl, "operation")),
                        PermissionType.ALLOW));
    }

    private static AclBindingFilter filter(AclBinding binding) {
        AccessControlEntry entry = binding.getAccessControlEntry();
        return new AclBindingFilter(
                new ResourceFilter(binding.getResource().getType(), binding.getResource().getName()),
                new AccessControlEntryFilter(
                        entry.getPrincipal(), entry.getHost(), entry.getOperationType(), entry.getPermissionType()));
    }

    private Object listAcls(JsonNode c) throws Exception {
        List<Object> found = new ArrayList<>();
        for (AclBinding binding : get(admin.listAcls(AclBindingFilter.ANY))) {
            found.add(
                    Arrays.asList(
                            binding.getResource().getType().name(),
                            binding.getResource().getName(),
                            binding.getAccessControlEntry().getPrincipal().getName(),
                            binding.getAccessControlEntry().getOperationType().name()));
        }
        return found;
    }

    // ---------------------------------------------------------------- small helpers

    private static <T> T get(CompletableFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    private static String text(JsonNode node, String key) {
        return node.get(key).asText();
    }

    private static boolean flag(JsonNode node, String key) {
        return node.path(key).asBoolean(false);
    }

    private static List<String> list(JsonNode node) {
        List<String> found = new ArrayList<>();
        node.forEach(one -> found.add(one.asText()));
        return found;
    }

    private static List<Integer> integers(JsonNode node) {
        List<Integer> found = new ArrayList<>();
        node.forEach(one -> found.add(one.asInt()));
        return found;
    }

    private static Map<String, String> strings(JsonNode node) {
        Map<String, String> found = new LinkedHashMap<>();
        for (Iterator<Map.Entry<String, JsonNode>> all = node.fields(); all.hasNext(); ) {
            Map.Entry<String, JsonNode> one = all.next();
            found.put(one.getKey(), one.getValue().asText());
        }
        return found;
    }
}
