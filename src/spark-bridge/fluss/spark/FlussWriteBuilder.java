// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A write in Python that appends or upserts, or replaces all rows or those of a partition.
 *
 * <p>It takes the output mode {@code update} too: a row that changes is upserted, or appended to a log table.
 */
class FlussWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite, SupportsStreamingUpdateAsAppend {
  /** An option of the Python source: the partitions whose rows are replaced. */
  private static final String OVERWRITE_PARTITIONS = "overwrite.partitions";

  /** Its value for the partitions that have new rows. */
  private static final String DYNAMIC = "*";

  /** An option of the Python source: whether Spark may run a task twice at the same time. */
  private static final String SPECULATION = "write.speculation";

  /** An option of the Python source: whether a task may write its rows in several parts. */
  private static final String PARTS = "write.parts";

  /** Options of which one says that rows are written exactly once, which needs them in one part. */
  private static final List<String> ONCE = List.of("write.delivery", "txnappid");

  private final LogicalWriteInfo info;
  private final Map<String, String> options;
  private final List<String> partitionedBy;
  private boolean replaces;

  FlussWriteBuilder(LogicalWriteInfo info, CaseInsensitiveStringMap options, List<String> partitionedBy) {
    this.info = info;
    this.options = new LinkedHashMap<>(options.asCaseSensitiveMap());
    this.partitionedBy = partitionedBy;
  }

  /** Whether Spark may run a task a second time beside the first. */
  static boolean speculates() {
    return SparkEnv.get().conf().getBoolean("spark.speculation", false);
  }

  @Override
  public WriteBuilder truncate() {
    replaces = true;
    return this;
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    options.put(OVERWRITE_PARTITIONS, partition(predicates));
    return truncate();
  }

  /** Replaces the partitions that have new rows; without partitions, all rows. */
  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    if (!partitionedBy.isEmpty()) {
      options.put(OVERWRITE_PARTITIONS, DYNAMIC);
    }
    return truncate();
  }

  /** The name of the one partition that predicates mean. */
  private String partition(Predicate[] predicates) {
    Map<String, String> values = new LinkedHashMap<>();
    for (Predicate predicate : predicates) {
      Expression[] sides = predicate.children();
      if (List.of("=", "<=>").contains(predicate.name())
          && sides[0] instanceof NamedReference column
          && sides[1] instanceof Literal<?> literal
          && literal.value() != null) {
        values.put(String.join(".", column.fieldNames()), CatalogTable.text(literal.value(), literal.dataType()));
      }
    }
    if (predicates.length != values.size() || !values.keySet().equals(Set.copyOf(partitionedBy))) {
      throw new UnsupportedOperationException(
          "INSERT OVERWRITE replaces all rows, or those of one partition: give a value for each of the partition columns "
              + partitionedBy);
    }
    List<String> parts = new ArrayList<>();
    partitionedBy.forEach(column -> parts.add(values.get(column)));
    return String.join("$", parts);
  }

  @Override
  public Write build() {
    if (speculates()) {
      options.put(SPECULATION, "true");
    }
    boolean inParts = !mayWriteOnce();
    if (inParts) {
      options.put(PARTS, "true");
    }
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    SupportsWrite python = (SupportsWrite) FlussSource.python().getTable(info.schema(), new Transform[0], Map.of());
    WriteBuilder builder = python.newWriteBuilder(new WriteInfo(info.queryId(), info.schema(), given));
    Write write = (replaces ? ((SupportsTruncate) builder).truncate() : builder).build();
    return inParts ? new BoundedWrite(write, info.schema()) : write;
  }

  /** Whether an option of the write, of its catalog or of the session is about exactly-once. */
  private boolean mayWriteOnce() {
    return options.keySet().stream()
        .map(name -> name.toLowerCase(Locale.ROOT))
        .anyMatch(name -> ONCE.stream().anyMatch(name::endsWith));
  }

  /** What Spark says of a write, with all options. */
  record WriteInfo(String queryId, StructType schema, CaseInsensitiveStringMap options) implements LogicalWriteInfo {}
}
