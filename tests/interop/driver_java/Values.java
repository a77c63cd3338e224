// SPDX-License-Identifier: Apache-2.0

import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DecimalType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;

/** The canonical JSON form of values (see canonical.py), to and from the row classes of the Java client. */
final class Values {
    private Values() {}

    static GenericRow row(JsonNode values, List<DataType> types) {
        GenericRow row = new GenericRow(types.size());
        for (int i = 0; i < types.size(); i++) {
            row.setField(i, decode(values.get(i), types.get(i)));
        }
        return row;
    }

    static List<Object> canonical(InternalRow row, List<DataType> types) {
        if (row == null) {
            return null;
        }
        List<Object> values = new ArrayList<>();
        for (int i = 0; i < types.size(); i++) {
            values.add(encode(InternalRow.createFieldGetter(types.get(i), i).getFieldOrNull(row), types.get(i)));
        }
        return values;
    }

    static Object decode(JsonNode value, DataType type) {
        if (value == null || value.isNull()) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return value.asBoolean();
            case TINYINT:
                return (byte) value.asInt();
            case SMALLINT:
                return (short) value.asInt();
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return value.asInt();
            case BIGINT:
                return value.asLong();
            case FLOAT:
                return Float.intBitsToFloat(ByteBuffer.wrap(bytes(value.asText())).getInt());
            case DOUBLE:
                return Double.longBitsToDouble(ByteBuffer.wrap(bytes(value.asText())).getLong());
            case CHAR:
            case STRING:
                return BinaryString.fromString(value.asText());
            case BINARY:
            case BYTES:
                return bytes(value.asText());
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                return Decimal.fromBigDecimal(
                        new BigDecimal(value.asText()), decimal.getPrecision(), decimal.getScale());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return TimestampNtz.fromMillis(value.get(0).asLong(), value.get(1).asInt());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return TimestampLtz.fromEpochMillis(value.get(0).asLong(), value.get(1).asInt());
            case ARRAY:
                Object[] elements = new Object[value.size()];
                for (int i = 0; i < elements.length; i++) {
                    elements[i] = decode(value.get(i), ((ArrayType) type).getElementType());
                }
                return new GenericArray(elements);
            case MAP:
                Map<Object, Object> map = new LinkedHashMap<>();
                for (JsonNode pair : value) {
                    map.put(
                            decode(pair.get(0), ((MapType) type).getKeyType()),
                            decode(pair.get(1), ((MapType) type).getValueType()));
                }
                return new GenericMap(map);
            case ROW:
                return row(value, ((RowType) type).getChildren());
            default:
                throw new IllegalArgumentException("no canonical form for " + type);
        }
    }

    static Object encode(Object value, DataType type) {
        if (value == null) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case CHAR:
            case STRING:
                return value.toString();
            case FLOAT:
                return hex(ByteBuffer.allocate(4).putInt(Float.floatToIntBits((Float) value)).array());
            case DOUBLE:
                return hex(ByteBuffer.allocate(8).putLong(Double.doubleToLongBits((Double) value)).array());
            case BINARY:
            case BYTES:
                return hex((byte[]) value);
            case DECIMAL:
                return ((Decimal) value).toBigDecimal().toPlainString();
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                TimestampNtz ntz = (TimestampNtz) value;
                return List.of(ntz.getMillisecond(), ntz.getNanoOfMillisecond());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                TimestampLtz ltz = (TimestampLtz) value;
                return List.of(ltz.getEpochMillisecond(), ltz.getNanoOfMillisecond());
            case ARRAY:
                return elements((InternalArray) value, ((ArrayType) type).getElementType());
            case MAP:
                List<Object> keys = elements(((InternalMap) value).keyArray(), ((MapType) type).getKeyType());
                List<Object> values = elements(((InternalMap) value).valueArray(), ((MapType) type).getValueType());
                List<Object> pairs = new ArrayList<>();
                for (int i = 0; i < keys.size(); i++) {
                    List<Object> pair = new ArrayList<>();
                    pair.add(keys.get(i));
                    pair.add(values.get(i));
                    pairs.add(pair);
                }
                return pairs;
            case ROW:
                return canonical((InternalRow) value, ((RowType) type).getChildren());
            default:
                return value;
        }
    }

    private static List<Object> elements(InternalArray array, DataType type) {
        List<Object> found = new ArrayList<>();
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
        for (int i = 0; i < array.size(); i++) {
            found.add(encode(getter.getElementOrNull(array, i), type));
        }
        return found;
    }

    private static byte[] bytes(String hex) {
        byte[] out = new byte[hex.length() / 2];
        for (int i = 0; i < out.length; i++) {
            out[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return out;
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }
}
