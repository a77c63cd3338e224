// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table of Fluss with the options it was named with. */
class FlussTable implements SupportsRead, SupportsWrite {
  private final StructType schema;
  private final Map<String, String> options;

  FlussTable(StructType schema, Map<String, String> options) {
    this.schema = schema;
    this.options = options;
  }

  @Override
  public String name() {
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    return FlussSource.NAME + " " + given.getOrDefault("table", given.getOrDefault("path", ""));
  }

  @Override
  @SuppressWarnings("deprecation")
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(
        TableCapability.BATCH_READ,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.BATCH_WRITE,
        TableCapability.STREAMING_WRITE,
        TableCapability.TRUNCATE);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return new FlussScanBuilder(schema, withTable(given.asCaseSensitiveMap()));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return newWriteBuilder(info, Map.of());
  }

  /** A write with more options than the query gives. */
  WriteBuilder newWriteBuilder(LogicalWriteInfo info, Map<String, String> more) {
    SupportsWrite python =
        (SupportsWrite) FlussSource.python().getTable(info.schema(), new Transform[0], Map.of());
    Map<String, String> given = new LinkedHashMap<>(info.options().asCaseSensitiveMap());
    given.putAll(more);
    return new UpsertingBuilder(python.newWriteBuilder(new WriteInfo(info, withTable(given))));
  }

  /** The options of a query, those of the table where it is one of a catalog, and those of the session. */
  private CaseInsensitiveStringMap withTable(Map<String, String> given) {
    CaseInsensitiveStringMap known = new CaseInsensitiveStringMap(given);
    Map<String, String> all = new LinkedHashMap<>();
    options.forEach(
        (name, value) -> {
          // Spark gives each table of a catalog a location, under the name of an option of ours.
          boolean location = name.equalsIgnoreCase("path") && value.contains("/");
          if (!location && !known.containsKey(name)) {
            all.put(name, value);
          }
        });
    all.putAll(given);
    return FlussSource.withSession(all);
  }

  /** What Spark says of a write, with all options. */
  private record WriteInfo(LogicalWriteInfo given, CaseInsensitiveStringMap options) implements LogicalWriteInfo {
    @Override
    public String queryId() {
      return given.queryId();
    }

    @Override
    public StructType schema() {
      return given.schema();
    }
  }

  /** A writer for the output mode {@code update} too: a row that changes is upserted, or appended to a log table. */
  private static class UpsertingBuilder implements SupportsTruncate, SupportsStreamingUpdateAsAppend {
    private WriteBuilder python;

    UpsertingBuilder(WriteBuilder python) {
      this.python = python;
    }

    @Override
    public WriteBuilder truncate() {
      python = ((SupportsTruncate) python).truncate();
      return this;
    }

    @Override
    public Write build() {
      return python.build();
    }
  }
}
