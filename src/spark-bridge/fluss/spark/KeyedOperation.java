// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.util.RowDeltaUtils;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** DELETE, UPDATE or MERGE on a primary-key table: rows that change are upserted, others deleted by key. */
record KeyedOperation(CatalogTable table, RowLevelOperation.Command command, List<String> key) implements SupportsDelta {
  @Override
  public String description() {
    return "fluss";
  }

  @Override
  public NamedReference[] rowId() {
    return key.stream().map(FlussTable::column).toArray(NamedReference[]::new);
  }

  /** Reads the rows as they are now, whatever reads of the session get: they are written back with their changes. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    Map<String, String> current = new LinkedHashMap<>(options.asCaseSensitiveMap());
    current.putAll(Map.of("read.optimized", "false", "read.changelog", "false", "scan.startup.mode", "full"));
    return table.newScanBuilder(new CaseInsensitiveStringMap(current));
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        return command == Command.MERGE ? new Merge(info) : new Write(info);
      }
    };
  }

  private class Write implements DeltaWrite {
    final LogicalWriteInfo info;

    Write(LogicalWriteInfo info) {
      this.info = info;
    }

    @Override
    public DeltaBatchWrite toBatch() {
      return new Changes(info);
    }
  }

  /** May delete a key and insert it again: one task gets both, the delete first, so that the new row stays. */
  private class Merge extends Write implements RequiresDistributionAndOrdering {
    Merge(LogicalWriteInfo info) {
      super(info);
      if (FlussWriteBuilder.speculates()) {
        throw new UnsupportedOperationException(
            "spark.speculation is on: MERGE INTO " + table + " could lose rows if two attempts of a task write at the same"
                + " time. Start Spark with spark.speculation=false");
      }
    }

    @Override
    public Distribution requiredDistribution() {
      StructType row = info.schema(); // without a column of the key that Python fills
      return Distributions.clustered(
          key.stream().filter(name -> row.getFieldIndex(name).isDefined()).map(FlussTable::column).toArray(NamedReference[]::new));
    }

    @Override
    public SortOrder[] requiredOrdering() {
      NamedReference operation = FlussTable.column(RowDeltaUtils.OPERATION_COLUMN());
      return new SortOrder[] {Expressions.sort(operation, SortDirection.ASCENDING)};
    }
  }

  /** Two writes in Python: one for rows, and one for the keys of rows to delete. */
  private class Changes implements DeltaBatchWrite {
    private final StructType keySchema;
    private final StructType rowSchema;
    private final BatchWrite deletes;
    private final BatchWrite upserts;

    Changes(LogicalWriteInfo info) {
      keySchema = info.rowIdSchema().orElseThrow();
      rowSchema = info.schema();
      deletes = command == Command.UPDATE ? null : write(info, keySchema, Map.of("write.mode", "delete"));
      upserts = command == Command.DELETE ? null : write(info, rowSchema, Map.of("write.mode", "upsert"));
    }

    private BatchWrite write(LogicalWriteInfo info, StructType schema, Map<String, String> options) {
      return table.newWriteBuilder(new FlussWriteBuilder.WriteInfo(info.queryId(), schema, info.options()), options)
          .build()
          .toBatch();
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new KeyedWriter.Factory(
          deletes == null ? null : deletes.createBatchWriterFactory(info),
          upserts == null ? null : upserts.createBatchWriterFactory(info),
          keySchema,
          rowSchema);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      if (deletes != null) {
        deletes.commit(KeyedWriter.Messages.deletes(messages));
      }
      if (upserts != null) {
        upserts.commit(KeyedWriter.Messages.upserts(messages));
      }
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      // Rows that are written stay: what is written by key can be written again.
    }
  }
}
