// SPDX-License-Identifier: Apache-2.0
package org.apache.fluss.server.testutils;

import java.io.File;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.cluster.ServerNode;
import org.apache.fluss.cluster.ServerType;
import org.apache.fluss.config.ConfigOptions;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.config.MemorySize;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.metrics.registry.MetricRegistry;
import org.apache.fluss.rpc.GatewayClientProxy;
import org.apache.fluss.rpc.RpcClient;
import org.apache.fluss.rpc.gateway.CoordinatorGateway;
import org.apache.fluss.rpc.gateway.TabletServerGateway;
import org.apache.fluss.rpc.metrics.ClientMetricGroup;
import org.apache.fluss.security.acl.AclBinding;
import org.apache.fluss.utils.clock.Clock;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.opentest4j.TestAbortedException;

/**
 * Stands before the class of the same name of Apache Fluss on the class path, and gives its cases the
 * server of this package instead of a cluster in their own process.
 *
 * <p>It has the methods that a server behind the wire can answer. The others are missing on purpose: a
 * case that calls one fails with NoSuchMethodError, which names what it wanted, and counts as left out.
 */
public final class FlussClusterExtension implements BeforeAllCallback, AfterAllCallback, AfterEachCallback {
    public static final String BUILTIN_DATABASE = "fluss";
    private static final Pattern READY = Pattern.compile("^ready (\\S+)$", Pattern.MULTILINE);
    private static final Duration WAIT_MAX = Duration.ofSeconds(60);

    private final Builder built;
    // The listeners by name, with the ports of the first start: a restarted server must be found again.
    private final Map<String, String> listeners = new TreeMap<>();
    private Path home;
    private Process server;
    private RpcClient rpcClient;
    private Connection connection;

    private FlussClusterExtension(Builder built) {
        this.built = built;
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    public void beforeAll(ExtensionContext context) throws Exception {
        start();
    }

    @Override
    public void afterAll(ExtensionContext context) throws Exception {
        close();
    }

    @Override
    public void afterEach(ExtensionContext context) throws Exception {
        startTabletServer(0); // a case may have left it stopped
        Admin admin = admin();
        for (String database : admin.listDatabases().get()) {
            if (!database.equals(BUILTIN_DATABASE)) {
                admin.dropDatabase(database, true, true).get();
                continue;
            }
            for (String table : admin.listTables(database).get()) {
                admin.dropTable(TablePath.of(database, table), true).get();
            }
        }
    }

    public void start() throws Exception {
        home = Files.createTempDirectory("fluss-itcase-");
        listeners.clear();
        for (String listener : built.listeners.split(",")) {
            String[] parts = listener.trim().split("://");
            listeners.put(parts[0], parts[1]);
        }
        startServer();
        Configuration conf = new Configuration();
        ClientMetricGroup metrics = new ClientMetricGroup(MetricRegistry.create(conf, null), "itcase");
        // Releases differ by a last argument: whether the client is one of the servers.
        for (Method method : RpcClient.class.getMethods()) {
            if (method.getName().equals("create")) {
                Object[] arguments = {conf, metrics, false};
                rpcClient = (RpcClient) method.invoke(null, Arrays.copyOf(arguments, method.getParameterCount()));
            }
        }
    }

    public void close() throws Exception {
        if (connection != null) {
            connection.close();
            connection = null;
        }
        if (rpcClient != null) {
            rpcClient.close();
            rpcClient = null;
        }
        stopServer();
        if (home != null) {
            try (Stream<Path> paths = Files.walk(home)) {
                paths.sorted(Collections.reverseOrder()).map(Path::toFile).forEach(File::delete);
            }
        }
    }

    private void startServer() throws Exception {
        Map<String, String> options = new TreeMap<>(built.conf.toMap());
        options.keySet().removeIf(key -> key.startsWith("client."));
        options.put("bind.listeners", listeners.entrySet().stream()
                .map(one -> one.getKey() + "://" + one.getValue()).collect(Collectors.joining(",")));
        options.put("remote.data.dir", home.resolve("remote-data-dir").toString());
        options.put("datalake.paimon.warehouse", home.resolve("warehouse").toString());
        options.put("kv.snapshot.interval", "1 s");
        options.put("default.replication.factor", "1"); // there is one server, whatever the case asked for
        // The lists that afterEach asks for are filtered by rights, even on the internal listener.
        options.computeIfPresent("super.users", (key, users) -> users + ";User:ANONYMOUS");
        List<String> command = new ArrayList<>(Arrays.asList(System.getProperty("itcases.server").split(" ")));
        Collections.addAll(command, "--data-dir", home.resolve("data").toString());
        options.forEach((key, value) -> Collections.addAll(command, "-D", key + "=" + value));
        Path log = home.resolve("server.log");
        Files.deleteIfExists(log);
        server = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile()).start();
        Runtime.getRuntime().addShutdownHook(new Thread(server::destroyForcibly));
        String[] addresses = poll("the server listens", () -> {
            String text = new String(Files.readAllBytes(log));
            Matcher ready = READY.matcher(text);
            if (!server.isAlive()) {
                throw new IllegalStateException("The server did not start: " + text);
            }
            return ready.find() ? ready.group(1).split(",") : null;
        });
        int index = 0;
        for (Map.Entry<String, String> listener : listeners.entrySet()) {
            listener.setValue(addresses[index++]);
        }
    }

    private void stopServer() throws Exception {
        if (server != null) {
            server.destroy();
            if (!server.waitFor(30, TimeUnit.SECONDS)) {
                server.destroyForcibly().waitFor();
            }
            server = null;
        }
    }

    /** The one server answers for all; stopping the first of them stops it. */
    public void stopTabletServer(int serverId) throws Exception {
        if (serverId == 0) {
            stopServer();
        }
    }

    public void startTabletServer(int serverId) throws Exception {
        if (serverId == 0 && server == null) {
            startServer();
        }
    }

    public void startTabletServer(int serverId, boolean forceStartIfExists) throws Exception {
        startTabletServer(serverId);
    }

    public void assertHasTabletServerNumber(int count) {
        if (count != built.tabletServers) {
            throw new TestAbortedException("needs a cluster that loses a tablet server");
        }
    }

    public Configuration getClientConfig() {
        return getClientConfig(null);
    }

    public Configuration getClientConfig(String listener) {
        Configuration conf = new Configuration();
        conf.set(ConfigOptions.BOOTSTRAP_SERVERS, Collections.singletonList(address(listener)));
        // Small, so that the cases meet full buffers and several batches.
        conf.set(ConfigOptions.CLIENT_WRITER_BUFFER_MEMORY_SIZE, MemorySize.parse("2mb"));
        conf.set(ConfigOptions.CLIENT_WRITER_BATCH_SIZE, MemorySize.parse("256kb"));
        conf.set(ConfigOptions.CLIENT_WRITER_BUFFER_PAGE_SIZE, MemorySize.parse("1kb"));
        return conf;
    }

    public String getBootstrapServers() {
        return address(null);
    }

    public ServerNode getCoordinatorServerNode() {
        return getCoordinatorServerNode(null);
    }

    public ServerNode getCoordinatorServerNode(String listener) {
        return node(listener, ServerType.COORDINATOR);
    }

    public List<ServerNode> getTabletServerNodes() {
        return getTabletServerNodes(null);
    }

    public List<ServerNode> getTabletServerNodes(String listener) {
        return Collections.singletonList(node(listener, ServerType.TABLET_SERVER));
    }

    public RpcClient getRpcClient() {
        return rpcClient;
    }

    public CoordinatorGateway newCoordinatorClient() {
        return GatewayClientProxy.createGatewayProxy(this::getCoordinatorServerNode, rpcClient, CoordinatorGateway.class);
    }

    public TabletServerGateway newTabletServerClientForNode(int serverId) {
        ServerNode node = node(null, ServerType.TABLET_SERVER);
        return GatewayClientProxy.createGatewayProxy(() -> node, rpcClient, TabletServerGateway.class);
    }

    public String getRemoteDataDir() {
        return getRemoteDataDir("remote-data-dir");
    }

    public String getRemoteDataDir(String name) {
        return "file://" + home.resolve(name);
    }

    // What a cluster does in the background, the server has done when it answers: nothing to wait for.

    public void waitUntilAllGatewayHasSameMetadata() {}

    public void waitUntilTableReady(long tableId) {}

    public void waitUntilTablePartitionReady(long tableId, long partitionId) {}

    public void waitUntilAllReplicaReady(TableBucket bucket) {}

    public void waitUntilAuthenticationSync(Collection<AclBinding> bindings, boolean exist) {}

    public int waitAndGetLeader(TableBucket bucket) {
        return 0;
    }

    public Map<String, Long> waitUntilPartitionAllReady(TablePath path) {
        return waitUntilPartitionsCreated(path, ConfigOptions.TABLE_AUTO_PARTITION_NUM_PRECREATE.defaultValue());
    }

    public Map<String, Long> waitUntilPartitionAllReady(TablePath path, int count) {
        return waitUntilPartitionsCreated(path, count);
    }

    public Map<String, Long> waitUntilPartitionsCreated(TablePath path, int count) {
        return poll(count + " partitions of " + path, () -> {
            List<PartitionInfo> partitions = admin().listPartitionInfos(path).get();
            return partitions.size() != count ? null : partitions.stream()
                    .collect(Collectors.toMap(PartitionInfo::getPartitionName, PartitionInfo::getPartitionId));
        });
    }

    public void waitUntilSomeLogSegmentsCopyToRemote(TableBucket bucket) {
        String folder = "-" + bucket.getTableId() + File.separator;
        poll("a remote segment of " + bucket, () -> {
            try (Stream<Path> paths = Files.walk(home.resolve("remote-data-dir"))) {
                return paths.anyMatch(path -> path.toString().contains(folder) && path.toString().endsWith(".log"))
                        ? true : null;
            }
        });
    }

    public void triggerAndWaitSnapshot(TablePath path) throws Exception {
        TableInfo table = admin().getTableInfo(path).get();
        if (!table.isPartitioned()) {
            waitForSnapshots(path, null, table.getNumBuckets());
            return;
        }
        for (PartitionInfo partition : admin().listPartitionInfos(path).get()) {
            waitForSnapshots(path, partition.getPartitionName(), table.getNumBuckets());
        }
    }

    public void triggerAndWaitSnapshots(Collection<TableBucket> buckets) throws Exception {
        for (String database : admin().listDatabases().get()) {
            for (String name : admin().listTables(database).get()) {
                TablePath path = TablePath.of(database, name);
                long id = admin().getTableInfo(path).get().getTableId();
                if (buckets.stream().anyMatch(bucket -> bucket.getTableId() == id)) {
                    triggerAndWaitSnapshot(path);
                }
            }
        }
    }

    /** The server makes snapshots by itself; wait for those that cover all that is in the log now. */
    private void waitForSnapshots(TablePath path, String partition, int bucketCount) throws Exception {
        List<Integer> buckets = new ArrayList<>();
        for (int bucket = 0; bucket < bucketCount; bucket++) {
            buckets.add(bucket);
        }
        OffsetSpec latest = new OffsetSpec.LatestSpec();
        Map<Integer, Long> ends = new HashMap<>((partition == null
                ? admin().listOffsets(path, buckets, latest)
                : admin().listOffsets(path, partition, buckets, latest)).all().get());
        poll("snapshots of " + path, () -> {
            KvSnapshots snapshots = (partition == null
                    ? admin().getLatestKvSnapshots(path) : admin().getLatestKvSnapshots(path, partition)).get();
            return ends.entrySet().stream().allMatch(end -> end.getValue() == 0
                    || snapshots.getLogOffset(end.getKey()).orElse(-1) >= end.getValue()) ? true : null;
        });
    }

    private Admin admin() {
        if (connection == null) {
            connection = ConnectionFactory.createConnection(
                    getClientConfig(built.conf.get(ConfigOptions.INTERNAL_LISTENER_NAME)));
        }
        return connection.getAdmin();
    }

    private String address(String listener) {
        String internal = built.conf.get(ConfigOptions.INTERNAL_LISTENER_NAME);
        return listeners.get(listener == null ? internal : listener);
    }

    private ServerNode node(String listener, ServerType type) {
        String[] parts = address(listener).split(":");
        return new ServerNode(0, parts[0], Integer.parseInt(parts[1]), type);
    }

    private static <T> T poll(String what, Callable<T> value) {
        long deadline = System.nanoTime() + WAIT_MAX.toNanos();
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                T found = value.call();
                if (found != null) {
                    return found;
                }
                Thread.sleep(50);
            } catch (IllegalStateException error) {
                throw error;
            } catch (Exception error) {
                last = error;
            }
        }
        throw new IllegalStateException("Waited in vain for " + what, last);
    }

    /** What a case asks of its cluster. Racks and clocks are accepted and have no effect. */
    public static final class Builder {
        private final Configuration conf = new Configuration();
        private int tabletServers = 1;
        private String listeners = "FLUSS://localhost:0";

        public Builder setNumOfTabletServers(int count) {
            tabletServers = count;
            return this;
        }

        public Builder setClusterConf(Configuration more) {
            more.toMap().forEach(conf::setString);
            return this;
        }

        public Builder setCoordinatorServerListeners(String text) {
            listeners = text;
            return this;
        }

        public Builder setTabletServerListeners(String text) {
            return this;
        }

        public Builder setClock(Clock clock) {
            return this;
        }

        public Builder setRacks(String[] racks) {
            return this;
        }

        public Builder setRemoteDirNames(List<String> names) {
            return this;
        }

        public FlussClusterExtension build() {
            return new FlussClusterExtension(this);
        }
    }
}
