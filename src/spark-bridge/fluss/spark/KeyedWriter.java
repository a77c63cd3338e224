// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Function;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** The changes of one task. Spark gives them one by one, and Python takes them in batches. */
class KeyedWriter implements DeltaWriter<InternalRow> {
  private static final int ROWS_MAX = 65_536;
  private static final long BYTES_MAX = 32L << 20;

  private final Batches deletes;
  private final Batches upserts;
  private final StructType keySchema;
  private final StructType rowSchema;

  KeyedWriter(Batches deletes, Batches upserts, StructType keySchema, StructType rowSchema) {
    this.deletes = deletes;
    this.upserts = upserts;
    this.keySchema = keySchema;
    this.rowSchema = rowSchema;
  }

  @Override
  public void delete(InternalRow metadata, InternalRow id) throws IOException {
    deletes.add(id);
  }

  @Override
  public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
    for (int i = 0; i < keySchema.length(); i++) {
      String name = keySchema.fields()[i].name();
      DataType type = keySchema.fields()[i].dataType();
      if (rowSchema.getFieldIndex(name).isEmpty()) {
        continue; // Python copies it from a field within another column
      }
      if (!Objects.deepEquals(id.get(i, type), row.get(rowSchema.fieldIndex(name), type))) {
        throw new UnsupportedOperationException(
            "column " + name + " is part of the primary key, which UPDATE and MERGE cannot change; insert and delete instead");
      }
    }
    upserts.add(row);
  }

  @Override
  public void insert(InternalRow row) throws IOException {
    if (deletes != null) {
      deletes.flush(); // they come first, and one may be of the same key
    }
    upserts.add(row);
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    return new Messages(Batches.finish(deletes), Batches.finish(upserts));
  }

  @Override
  public void abort() {}

  @Override
  public void close() {}

  /** What the writers in Python reported. */
  record Messages(List<WriterCommitMessage> ofDeletes, List<WriterCommitMessage> ofUpserts) implements WriterCommitMessage {
    static WriterCommitMessage[] deletes(WriterCommitMessage[] messages) {
      return all(messages, Messages::ofDeletes);
    }

    static WriterCommitMessage[] upserts(WriterCommitMessage[] messages) {
      return all(messages, Messages::ofUpserts);
    }

    private static WriterCommitMessage[] all(
        WriterCommitMessage[] messages, Function<Messages, List<WriterCommitMessage>> part) {
      return Stream.of(messages).flatMap(one -> part.apply((Messages) one).stream()).toArray(WriterCommitMessage[]::new);
    }
  }

  /** Rows for Python, handed over whenever there are many of them. */
  static class Batches {
    private final DataWriterFactory python;
    private final int partitionId;
    private final long taskId;
    private final UnsafeProjection copy;
    private final List<InternalRow> rows = new ArrayList<>();
    private final List<WriterCommitMessage> messages = new ArrayList<>();
    private long bytes;

    Batches(DataWriterFactory python, int partitionId, long taskId, StructType schema) {
      this.python = python;
      this.partitionId = partitionId;
      this.taskId = taskId;
      this.copy = UnsafeProjection.create(schema);
    }

    void add(InternalRow row) throws IOException {
      UnsafeRow kept = copy.apply(row).copy(); // Spark uses the row again for the next change
      rows.add(kept);
      bytes += kept.getSizeInBytes();
      if (rows.size() >= ROWS_MAX || bytes >= BYTES_MAX) {
        flush();
      }
    }

    void flush() throws IOException {
      if (!rows.isEmpty()) {
        DataWriter<InternalRow> writer = python.createWriter(partitionId, taskId);
        writer.writeAll(rows.iterator());
        messages.add(writer.commit());
        rows.clear();
        bytes = 0;
      }
    }

    static List<WriterCommitMessage> finish(Batches batches) throws IOException {
      if (batches == null) {
        return List.of();
      }
      batches.flush();
      return batches.messages;
    }
  }

  /** Makes the writers of tasks; travels to executors, which need the jar for this. */
  record Factory(DataWriterFactory deletes, DataWriterFactory upserts, StructType keySchema, StructType rowSchema)
      implements DeltaWriterFactory {
    @Override
    public DeltaWriter<InternalRow> createWriter(int partitionId, long taskId) {
      return new KeyedWriter(
          deletes == null ? null : new Batches(deletes, partitionId, taskId, keySchema),
          upserts == null ? null : new Batches(upserts, partitionId, taskId, rowSchema),
          keySchema,
          rowSchema);
    }
  }
}
