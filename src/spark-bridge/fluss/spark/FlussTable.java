// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table of Fluss with the options it was named with. */
class FlussTable implements SupportsRead, SupportsWrite {
  private final StructType schema;
  private final Map<String, String> options;
  private final Map<String, String> session = FlussSource.sessionOptions();

  FlussTable(StructType schema, Map<String, String> options) {
    this.schema = schema;
    this.options = options;
  }

  /** A column. Spark takes a dot outside of backquotes for the way to a field within a column. */
  static NamedReference column(String name) {
    return Expressions.column(quoted(name));
  }

  static String quoted(String column) {
    return "`" + column.replace("`", "``") + "`";
  }

  @Override
  public String name() {
    return toString();
  }

  /** How the progress of a stream describes its target. */
  @Override
  public final String toString() {
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    return FlussSource.NAME + " " + given.getOrDefault("table", given.getOrDefault("path", ""));
  }

  /** Spark finds what it has cached of a table, and what a write makes stale, by this: it loads tables anew per query. */
  @Override
  public final boolean equals(Object other) {
    return other instanceof FlussTable table
        && getClass() == table.getClass()
        && name().equals(table.name())
        && options.equals(table.options)
        && session.equals(table.session); // it may name another server
  }

  @Override
  public final int hashCode() {
    return name().hashCode();
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
    return new FlussScanBuilder(this, schema, withTable(given.asCaseSensitiveMap()));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return newWriteBuilder(info, Map.of());
  }

  /** A write with more options than the query gives. */
  FlussWriteBuilder newWriteBuilder(LogicalWriteInfo info, Map<String, String> more) {
    Map<String, String> given = new LinkedHashMap<>(info.options().asCaseSensitiveMap());
    given.putAll(more);
    return new FlussWriteBuilder(info, withTable(given), partitionedBy());
  }

  /** The columns that partitions are made by, where they are known. */
  List<String> partitionedBy() {
    return List.of();
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
}
