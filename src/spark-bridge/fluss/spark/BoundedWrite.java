// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.stream.Stream;
import org.apache.spark.TaskContext;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.ReadOnlySQLConf;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * A write in Python whose batches are bounded here, by the bytes of their rows.
 *
 * <p>Spark would ask for the size of a batch after every row, which takes half the time of a write. It now goes by the
 * number of rows alone. Where rows are so long that a batch reaches its bytes first, the writer in Python ends, and
 * another one takes the rows that are left of the task.
 */
record BoundedWrite(Write python, StructType schema) implements Write {
  @Override
  public String description() {
    return python.description();
  }

  @Override
  public BatchWrite toBatch() {
    return new Batch(python.toBatch(), schema);
  }

  @Override
  public StreamingWrite toStreaming() {
    return python.toStreaming();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return python.reportDriverMetrics();
  }

  /** The side of the driver. */
  private record Batch(BatchWrite python, StructType schema) implements BatchWrite {
    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new Factory(python.createBatchWriterFactory(info), schema);
    }

    @Override
    public boolean useCommitCoordinator() {
      return python.useCommitCoordinator();
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      python.commit(Messages.all(messages));
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      python.abort(Messages.all(messages));
    }
  }

  /** What the writers in Python of one task reported. */
  private record Messages(List<WriterCommitMessage> messages) implements WriterCommitMessage {
    /** Those of all tasks; null for a task that failed. */
    static WriterCommitMessage[] all(WriterCommitMessage[] tasks) {
      return Stream.of(tasks)
          .flatMap(task -> task instanceof Messages found ? found.messages().stream() : Stream.of(task))
          .toArray(WriterCommitMessage[]::new);
    }
  }

  /** Makes the writers of tasks; travels to executors, which need the jar for this. */
  private record Factory(DataWriterFactory python, StructType schema) implements DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partitionId, long taskId) {
      return new Writer(python, schema, partitionId, taskId);
    }
  }

  /** The rows of one task. */
  private static class Writer implements DataWriter<InternalRow> {
    private final DataWriterFactory python;
    private final StructType schema;
    private final int partitionId;
    private final long taskId;
    private final List<WriterCommitMessage> messages = new ArrayList<>();
    private DataWriter<InternalRow> present;

    Writer(DataWriterFactory python, StructType schema, int partitionId, long taskId) {
      this.python = python;
      this.schema = schema;
      this.partitionId = partitionId;
      this.taskId = taskId;
    }

    @Override
    public void writeAll(Iterator<InternalRow> rows) throws IOException {
      SQLConf byRows = new BatchesByRows();
      do {
        present = python.createWriter(partitionId, taskId);
        Iterator<InternalRow> bounded = new BoundedRows(rows, schema);
        try {
          SQLConf.withExistingConf(byRows, () -> writeAll(present, bounded));
        } catch (UncheckedIOException error) {
          throw error.getCause();
        }
        messages.add(present.commit());
      } while (rows.hasNext());
    }

    private static Object writeAll(DataWriter<InternalRow> writer, Iterator<InternalRow> rows) {
      try {
        writer.writeAll(rows);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return null;
    }

    @Override
    public void write(InternalRow row) {
      throw new UnsupportedOperationException("Python takes all rows of a task at once");
    }

    @Override
    public WriterCommitMessage commit() {
      return new Messages(messages);
    }

    @Override
    public void abort() {}

    @Override
    public void close() {}

    /** Those of the writer that is at work. */
    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return present == null ? new CustomTaskMetric[0] : present.currentMetricsValues();
    }
  }

  /** The settings of a task, except that the bytes of a batch have no limit. */
  private static class BatchesByRows extends ReadOnlySQLConf {
    private static final long serialVersionUID = 1L;

    BatchesByRows() {
      super(TaskContext.get());
    }

    @Override
    public long arrowMaxBytesPerBatch() {
      return Integer.MAX_VALUE;
    }
  }

  /** Rows up to the one with which a batch has its bytes. */
  private static class BoundedRows implements Iterator<InternalRow> {
    private final Iterator<InternalRow> rows;
    private final StructType schema;
    private final int rowsMax = SQLConf.get().arrowMaxRecordsPerBatch();
    private final long bytesMax =
        JavaUtils.byteStringAsBytes(SQLConf.get().getConfString("spark.sql.execution.arrow.maxBytesPerBatch", "64m"));

    private UnsafeProjection projection;
    private int batchRows;
    private long batchBytes;

    BoundedRows(Iterator<InternalRow> rows, StructType schema) {
      this.rows = rows;
      this.schema = schema;
    }

    @Override
    public boolean hasNext() {
      return batchBytes < bytesMax && rows.hasNext();
    }

    @Override
    public InternalRow next() {
      InternalRow row = rows.next();
      if (batchRows == rowsMax) { // Spark has begun another batch
        batchRows = 0;
        batchBytes = 0;
      }
      batchRows++;
      batchBytes += sizeInBytes(row);
      return row;
    }

    private int sizeInBytes(InternalRow row) {
      if (row instanceof UnsafeRow measured) {
        return measured.getSizeInBytes();
      }
      if (projection == null) {
        projection = UnsafeProjection.create(schema);
      }
      return projection.apply(row).getSizeInBytes();
    }
  }
}
