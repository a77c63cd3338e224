// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import org.apache.arrow.vector.FieldVector;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of numbers, times, texts or bytes, read from the buffers of an Arrow vector.
 *
 * <p>Spark's own class for Arrow passes several objects and checks for each value: a sum over three columns takes a third
 * more processor time in the JVM with it. It is used for the other types.
 */
final class FlatColumn extends ColumnVector {
  private static final int OFFSET_BYTES = 4;

  private final int nulls;
  private final long validity;
  private final long offsets;
  private final long data;

  /** The column for a vector. It is valid until the vector is closed. */
  static ColumnVector of(FieldVector vector) {
    return switch (vector.getMinorType()) {
      case TINYINT, SMALLINT, INT, BIGINT, FLOAT4, FLOAT8, DATEDAY, TIMENANO, TIMESTAMPMICRO, TIMESTAMPMICROTZ ->
          new FlatColumn(vector, 0);
      case VARCHAR, VARBINARY -> new FlatColumn(vector, vector.getOffsetBuffer().memoryAddress());
      default -> new ArrowColumnVector(vector);
    };
  }

  private FlatColumn(FieldVector vector, long offsets) {
    super(ArrowUtils.fromArrowField(vector.getField()));
    this.nulls = vector.getNullCount();
    this.validity = vector.getValidityBuffer().memoryAddress();
    this.offsets = offsets;
    this.data = vector.getDataBuffer().memoryAddress();
  }

  @Override
  public boolean hasNull() {
    return nulls > 0;
  }

  @Override
  public int numNulls() {
    return nulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return nulls > 0 && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
  }

  @Override
  public byte getByte(int row) {
    return Platform.getByte(null, data + row);
  }

  @Override
  public short getShort(int row) {
    return Platform.getShort(null, data + (long) row * Short.BYTES);
  }

  @Override
  public int getInt(int row) {
    return Platform.getInt(null, data + (long) row * Integer.BYTES);
  }

  @Override
  public long getLong(int row) {
    return Platform.getLong(null, data + (long) row * Long.BYTES);
  }

  @Override
  public float getFloat(int row) {
    return Platform.getFloat(null, data + (long) row * Float.BYTES);
  }

  @Override
  public double getDouble(int row) {
    return Platform.getDouble(null, data + (long) row * Double.BYTES);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return isNullAt(row) ? null : UTF8String.fromAddress(null, data + start(row), start(row + 1) - start(row));
  }

  @Override
  public byte[] getBinary(int row) {
    if (isNullAt(row)) {
      return null;
    }
    byte[] value = new byte[start(row + 1) - start(row)];
    Platform.copyMemory(null, data + start(row), value, Platform.BYTE_ARRAY_OFFSET, value.length);
    return value;
  }

  private int start(int row) {
    return Platform.getInt(null, offsets + (long) row * OFFSET_BYTES);
  }

  @Override
  public boolean getBoolean(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw new UnsupportedOperationException();
  }

  /** The memory is the vector's. */
  @Override
  public void close() {}
}
