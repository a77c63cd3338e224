// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.util.Map;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Hands columns to Spark instead of rows.
 *
 * <p>Spark makes rows of all that a Python source gives, one by one. So Python gives one row per batch, whose only column
 * is the batch in Arrow's stream format. Travels to executors, which need the jar for this.
 */
record ColumnarReaders(PartitionReaderFactory python) implements PartitionReaderFactory {
  /** What Python gives. */
  static final StructType PACKED = new StructType().add("batch", DataTypes.BinaryType);

  /**
   * A batch read whose Python source has the schema {@link #PACKED}.
   *
   * <p>Spark takes two reads for the same by this class: a join prunes partitions at run time only by rows that it has read
   * for the join as well.
   */
  record Read(Map<String, String> options, Batch python) implements Batch {
    @Override
    public boolean equals(Object other) {
      return other instanceof Read read && options.equals(read.options);
    }

    @Override
    public int hashCode() {
      return options.hashCode();
    }

    @Override
    public InputPartition[] planInputPartitions() {
      return python.planInputPartitions();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new ColumnarReaders(python.createReaderFactory());
    }
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    throw new UnsupportedOperationException("this read has columns, no rows");
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    return new Reader(python.createReader(partition));
  }

  private static class Reader implements PartitionReader<ColumnarBatch> {
    private final PartitionReader<InternalRow> packed;
    private ArrowStreamReader arrow;

    Reader(PartitionReader<InternalRow> packed) {
      this.packed = packed;
    }

    @Override
    public boolean next() throws IOException {
      release();
      if (!packed.next()) {
        return false;
      }
      arrow = new ArrowStreamReader(new ByteArrayInputStream(packed.get().getBinary(0)), ArrowUtils.rootAllocator());
      return arrow.loadNextBatch();
    }

    @Override
    public ColumnarBatch get() {
      try {
        VectorSchemaRoot root = arrow.getVectorSchemaRoot();
        ColumnVector[] columns = root.getFieldVectors().stream().map(FlatColumn::of).toArray(ColumnVector[]::new);
        return new ColumnarBatch(columns, root.getRowCount());
      } catch (IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
    }

    /** Free the memory of a batch: Spark is done with it when it asks for the next one. */
    private void release() throws IOException {
      if (arrow != null) {
        arrow.close();
        arrow = null;
      }
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return packed.currentMetricsValues();
    }

    @Override
    public void close() throws IOException {
      try {
        release();
      } finally {
        packed.close();
      }
    }
  }
}
