// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Learns which columns and filters a query needs, and plans the read in Python with these. */
class FlussScanBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownFilters, SupportsPushDownLimit {
  /** An option of the Python source: conditions that Spark tests again, as a JSON array of texts. */
  private static final String PUSHED_FILTERS = "scan.pushed-filters";

  /** An option of the Python source: the most rows that a task gives. */
  private static final String LIMIT = "scan.limit";

  private final FlussTable table;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private StructType required;
  private Filter[] pushed = new Filter[0];
  private int limit;

  FlussScanBuilder(FlussTable table, StructType schema, CaseInsensitiveStringMap options) {
    this.table = table;
    this.schema = schema;
    this.options = options;
    this.required = schema;
  }

  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return rows > 0; // in part: each task gives so many rows
  }

  @Override
  public void pruneColumns(StructType wanted) {
    // A read has at least one column; `count()` needs none.
    required = wanted.isEmpty() && !schema.isEmpty() ? new StructType(new StructField[] {narrowest()}) : wanted;
  }

  private StructField narrowest() {
    StructField found = schema.fields()[0];
    for (StructField field : schema.fields()) {
      if (field.dataType().defaultSize() < found.dataType().defaultSize()) {
        found = field;
      }
    }
    return found;
  }

  @Override
  public Filter[] pushFilters(Filter[] filters) {
    List<Filter> usable = new ArrayList<>();
    for (Filter filter : filters) {
      if (Conditions.text(filter) != null) {
        usable.add(filter);
      }
    }
    pushed = usable.toArray(new Filter[0]);
    return filters; // Spark tests all of them again
  }

  @Override
  public Filter[] pushedFilters() {
    return pushed;
  }

  @Override
  public Scan build() {
    Map<String, String> given = new LinkedHashMap<>(options.asCaseSensitiveMap());
    List<String> conditions = new ArrayList<>();
    for (Filter filter : pushed) {
      conditions.add(Conditions.text(filter));
    }
    if (!conditions.isEmpty()) {
      given.put(PUSHED_FILTERS, Conditions.json(conditions));
    }
    if (limit > 0) {
      given.put(LIMIT, String.valueOf(limit));
    }
    SupportsRead python = (SupportsRead) FlussSource.python().getTable(required, new Transform[0], given);
    return new FlussScan(python.newScanBuilder(new CaseInsensitiveStringMap(given)).build(), required, conditions, limit, table);
  }

  /** The read in Python, with a description for query plans, and its size for the optimizer. */
  private record FlussScan(Scan python, StructType readSchema, List<String> conditions, int limit, FlussTable table)
      implements SupportsReportStatistics {
    @Override
    public String description() {
      String rows = conditions.isEmpty() ? "" : " where " + String.join(" and ", conditions);
      return "fluss " + readSchema.simpleString() + rows + (limit > 0 ? " limit " + limit : "");
    }

    @Override
    public Statistics estimateStatistics() {
      OptionalLong rows = table.rowCount();
      return new Size(rows, rows.isPresent() ? OptionalLong.of(rows.getAsLong() * readSchema.defaultSize()) : rows);
    }

    private record Size(OptionalLong numRows, OptionalLong sizeInBytes) implements Statistics {}

    @Override
    public Batch toBatch() {
      return python.toBatch();
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      return python.toMicroBatchStream(checkpointLocation);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return python.supportedCustomMetrics();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
      return python.reportDriverMetrics();
    }
  }
}
