// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeFiltering;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Learns which columns and filters a query needs, and plans the read in Python with these. */
class FlussScanBuilder
    implements SupportsPushDownRequiredColumns, SupportsPushDownFilters, SupportsPushDownLimit, SupportsPushDownAggregates {
  /** An option of the Python source: conditions that Spark tests again, as a JSON array of texts. */
  private static final String PUSHED_FILTERS = "scan.pushed-filters";

  /** An option of the Python source: conditions on partitions, which Spark does not test again. */
  private static final String PARTITION_FILTERS = "scan.partition-filters";

  /** Longer conditions may have more values, or be nested deeper, than the source takes. */
  private static final int PARTITION_FILTER_LENGTH = 1000;

  /** An option of the Python source: the most rows that a task gives. */
  private static final String LIMIT = "scan.limit";

  /** An option of the Python source: the schema of a read that gives packed batches instead of rows. */
  private static final String PACKED_SCHEMA = "scan.packed-schema";

  private static final Set<String> PARTITION_TYPES = Set.of("string", "boolean", "byte", "short", "integer", "long", "date");

  private final FlussTable table;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private StructType required;
  private final List<String> ofPartitions = new ArrayList<>();
  private final List<String> conditions = new ArrayList<>();
  private Filter[] pushed = new Filter[0];
  private int limit;
  private OptionalLong counted;

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
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return pushAggregation(aggregation);
  }

  /** Counts rows without reading them, where that is exact. Spark asks only if it has no filters to test. */
  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    if (counted != null) {
      return counted.isPresent(); // Spark asks twice
    }
    AggregateFunc[] wanted = aggregation.aggregateExpressions();
    if (wanted.length != 1 || !(wanted[0] instanceof CountStar) || aggregation.groupByExpressions().length > 0) {
      return false;
    }
    counted = ReadSize.count(optionsOfPartitions());
    return counted.isPresent();
  }

  @Override
  public void pruneColumns(StructType wanted) {
    // A read has at least one column; `count()` needs none.
    if (wanted.isEmpty() && !schema.isEmpty()) {
      required = new StructType(new StructField[] {narrowest()});
      return;
    }
    // Spark leaves out fields within a column as well; the source reads whole columns.
    List<String> known = List.of(schema.fieldNames());
    required = new StructType(Stream.of(wanted.fields())
        .map(field -> known.contains(field.name()) ? schema.apply(field.name()) : field)
        .toArray(StructField[]::new));
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
    List<Filter> testedAgain = new ArrayList<>();
    for (Filter filter : filters) {
      String condition = Conditions.text(filter);
      if (condition != null) {
        usable.add(filter);
      }
      if (condition != null && condition.length() <= PARTITION_FILTER_LENGTH && choosesPartitions(filter)) {
        ofPartitions.add(condition);
      } else {
        testedAgain.add(filter);
        if (condition != null) {
          conditions.add(condition);
        }
      }
    }
    pushed = usable.toArray(new Filter[0]);
    return testedAgain.toArray(new Filter[0]);
  }

  /** Whether a filter has columns of partitions alone, of types whose values compare here as they do in Spark. */
  private boolean choosesPartitions(Filter filter) {
    return filter.references().length > 0
        && Stream.of(filter.references()).allMatch(column -> table.partitionedBy().contains(column)
            && PARTITION_TYPES.contains(schema.apply(column).dataType().typeName()));
  }

  private Map<String, String> optionsOfPartitions() {
    Map<String, String> all = new LinkedHashMap<>(options.asCaseSensitiveMap());
    if (!ofPartitions.isEmpty()) {
      all.put(PARTITION_FILTERS, json(ofPartitions));
    }
    return all;
  }

  private static String json(List<String> texts) {
    return new ObjectMapper().valueToTree(texts).toString();
  }

  @Override
  public Filter[] pushedFilters() {
    return pushed;
  }

  @Override
  public Scan build() {
    if (counted != null && counted.isPresent()) {
      return new Count(counted.getAsLong());
    }
    return new FlussScan(required, ofPartitions, conditions, limit, optionsOfPartitions(), table);
  }

  /** The number of rows, as the one row of a query. */
  private record Count(long number) implements LocalScan {
    @Override
    public StructType readSchema() {
      return new StructType().add("count", DataTypes.LongType, false);
    }

    @Override
    public InternalRow[] rows() {
      return new InternalRow[] {new GenericInternalRow(new Object[] {number})};
    }
  }

  /** A read in Python, with a description for query plans, and its size for the optimizer. */
  private static class FlussScan implements SupportsReportStatistics, SupportsRuntimeFiltering {
    private final StructType schema;
    private final List<String> ofPartitions;
    private final List<String> conditions;
    private final int limit;
    private final Map<String, String> options;
    private final FlussTable table;
    private Statistics size;

    FlussScan(
        StructType schema,
        List<String> ofPartitions,
        List<String> conditions,
        int limit,
        Map<String, String> options,
        FlussTable table) {
      this.schema = schema;
      this.ofPartitions = ofPartitions;
      this.conditions = conditions;
      this.limit = limit;
      this.options = options;
      this.table = table;
    }

    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      List<String> all = new ArrayList<>(ofPartitions);
      all.addAll(conditions);
      String rows = all.isEmpty() ? "" : " where " + String.join(" and ", all);
      return "fluss " + schema.simpleString() + rows + (limit > 0 ? " limit " + limit : "");
    }

    /** Asked for several times per query. */
    @Override
    public synchronized Statistics estimateStatistics() {
      if (size == null) {
        size = ReadSize.of(pythonOptions(), schema);
      }
      return size;
    }

    /** The columns that partitions are made by: a join may leave few of the partitions to read. */
    @Override
    public NamedReference[] filterAttributes() {
      List<String> read = List.of(schema.fieldNames());
      return table.partitionedBy().stream().filter(read::contains).map(FlussTable::column).toArray(NamedReference[]::new);
    }

    /** Filters that are known when the query runs. Spark then plans the read again. */
    @Override
    public void filter(Filter[] filters) {
      for (Filter filter : filters) {
        String condition = Conditions.text(filter);
        if (condition != null) {
          conditions.add(condition);
        }
      }
    }

    private Map<String, String> pythonOptions() {
      Map<String, String> all = new LinkedHashMap<>(options);
      if (!conditions.isEmpty()) {
        all.put(PUSHED_FILTERS, json(conditions));
      }
      if (limit > 0) {
        all.put(LIMIT, String.valueOf(limit));
      }
      return all;
    }

    /** The read in Python, which gives rows of a schema. */
    private static Scan python(StructType given, Map<String, String> options) {
      SupportsRead python = (SupportsRead) FlussSource.python().getTable(given, new Transform[0], options);
      return python.newScanBuilder(new CaseInsensitiveStringMap(options)).build();
    }

    @Override
    public Batch toBatch() {
      Map<String, String> all = pythonOptions();
      all.put(PACKED_SCHEMA, schema.json());
      return new ColumnarReaders.Read(all, python(ColumnarReaders.PACKED, all).toBatch());
    }

    @Override
    public synchronized MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      size = ReadSize.UNKNOWN; // each batch has its own, and may be far larger than the table is now
      return python(schema, pythonOptions()).toMicroBatchStream(checkpointLocation);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return python(schema, pythonOptions()).supportedCustomMetrics();
    }
  }
}
