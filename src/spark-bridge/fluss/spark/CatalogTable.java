// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsPartitionManagement;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** A table of the catalog, as Python described it. */
class CatalogTable extends FlussTable
    implements SupportsPartitionManagement, SupportsMetadataColumns, SupportsRowLevelOperations, TruncatableTable {
  private final FlussCatalog catalog;
  private final String path;
  private final JsonNode described;

  CatalogTable(FlussCatalog catalog, String path, JsonNode described, Map<String, String> options) {
    super(schemaOf(described.get("schema")), options);
    this.catalog = catalog;
    this.path = path;
    this.described = described;
  }

  private static StructType schemaOf(JsonNode json) {
    return (StructType) DataType.fromJson(json.asText());
  }

  @Override
  public String name() {
    return catalog.name() + "." + path;
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> found = EnumSet.of(TableCapability.OVERWRITE_BY_FILTER, TableCapability.OVERWRITE_DYNAMIC);
    found.addAll(super.capabilities());
    return found;
  }

  @Override
  public Transform[] partitioning() {
    return partitionedBy().stream().map(FlussTable::quoted).map(Expressions::identity).toArray(Transform[]::new);
  }

  @Override
  public Map<String, String> properties() {
    return FlussCatalog.texts(described.get("properties"));
  }

  @Override
  List<String> partitionedBy() {
    return names("partitioned_by");
  }

  private List<String> names(String field) {
    List<String> found = new ArrayList<>();
    described.get(field).forEach(column -> found.add(column.asText()));
    return found;
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    List<MetadataColumn> found = new ArrayList<>();
    for (StructField field : schemaOf(described.get("metadata")).fields()) {
      found.add(new RowMetadata(field.name(), field.dataType(), field.nullable()));
    }
    return found.toArray(new MetadataColumn[0]);
  }

  private record RowMetadata(String name, DataType dataType, boolean isNullable) implements MetadataColumn {}

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    List<String> key = names("primary_key");
    if (key.isEmpty()) {
      throw new UnsupportedOperationException(
          info.command() + " needs a table with a primary key; " + name() + " is a log, whose rows do not change");
    }
    String engine = properties().get("table.merge-engine");
    if (engine != null) {
      throw new UnsupportedOperationException(
          info.command() + " cannot change " + name() + ": its merge engine " + engine + " combines rows instead of replacing them");
    }
    boolean deletes = info.command() != RowLevelOperation.Command.UPDATE;
    if (deletes && "ignore".equalsIgnoreCase(properties().get("table.delete.behavior"))) {
      throw new UnsupportedOperationException(
          info.command() + " cannot change " + name() + ": it ignores deletes (table.delete.behavior)");
    }
    List<String> cut = names("cut");
    if (info.command() == RowLevelOperation.Command.DELETE) {
      cut.retainAll(key); // only the key is written
    }
    if (!cut.isEmpty()) {
      throw new UnsupportedOperationException(
          info.command() + " cannot change " + name() + ": column " + cut.get(0)
              + " has nanoseconds, which Spark cuts off and would write back without; change such rows with fluss.connect()");
    }
    return () -> new KeyedOperation(this, info.command(), key);
  }

  @Override
  public boolean truncateTable() {
    catalog.call("truncate", Map.of("table", path, "partitions", List.of()));
    return true;
  }

  // -- partitions -----------------------------------------------------------------------------------------------

  @Override
  @SuppressWarnings("deprecation")
  public StructType partitionSchema() {
    List<StructField> found = new ArrayList<>();
    partitionedBy().forEach(column -> found.add(schema().apply(column)));
    return new StructType(found.toArray(new StructField[0]));
  }

  @Override
  public InternalRow[] listPartitionIdentifiers(String[] columns, InternalRow ident) {
    StructType all = partitionSchema();
    List<InternalRow> found = new ArrayList<>();
    for (JsonNode values : catalog.call("list_partitions", Map.of("table", path))) {
      boolean wanted = true;
      for (int i = 0; i < columns.length; i++) {
        int at = all.fieldIndex(columns[i]);
        wanted &= text(ident.get(i, all.fields()[at].dataType()), all.fields()[at].dataType()).equals(values.get(at).asText());
      }
      if (wanted) {
        found.add(row(values, all));
      }
    }
    return found.toArray(new InternalRow[0]);
  }

  @Override
  public void createPartition(InternalRow ident, Map<String, String> properties) {
    catalog.call("create_partition", Map.of("table", path, "partition", spec(ident)));
  }

  @Override
  public boolean dropPartition(InternalRow ident) {
    return catalog.call("drop_partition", Map.of("table", path, "partition", spec(ident))).asBoolean();
  }

  @Override
  public boolean truncatePartition(InternalRow ident) {
    catalog.call("truncate", Map.of("table", path, "partitions", List.of(String.join("$", spec(ident).values()))));
    return true;
  }

  @Override
  public void replacePartitionMetadata(InternalRow ident, Map<String, String> properties) {
    throw new UnsupportedOperationException("partitions of Fluss have no properties");
  }

  @Override
  public Map<String, String> loadPartitionMetadata(InternalRow ident) {
    return Map.of();
  }

  private Map<String, String> spec(InternalRow ident) {
    Map<String, String> found = new LinkedHashMap<>();
    StructField[] fields = partitionSchema().fields();
    for (int i = 0; i < fields.length; i++) {
      found.put(fields[i].name(), text(ident.get(i, fields[i].dataType()), fields[i].dataType()));
    }
    return found;
  }

  /** A value as it stands in the name of a partition. */
  static String text(Object value, DataType type) {
    return switch (type.typeName()) {
      case "string", "boolean", "byte", "short", "integer", "long" -> value.toString();
      case "date" -> LocalDate.ofEpochDay((Integer) value).toString();
      default -> throw unnamed(type);
    };
  }

  private static UnsupportedOperationException unnamed(DataType type) {
    return new UnsupportedOperationException(
        "partitions by a column of type " + type.sql() + " cannot be listed or named; rows that need one create it");
  }

  private static InternalRow row(JsonNode values, StructType schema) {
    Object[] found = new Object[schema.length()];
    for (int i = 0; i < found.length; i++) {
      found[i] = value(values.get(i).asText(), schema.fields()[i].dataType());
    }
    return new GenericInternalRow(found);
  }

  private static Object value(String text, DataType type) {
    return switch (type.typeName()) {
      case "string" -> UTF8String.fromString(text);
      case "boolean" -> Boolean.valueOf(text);
      case "byte" -> Byte.valueOf(text);
      case "short" -> Short.valueOf(text);
      case "integer" -> Integer.valueOf(text);
      case "long" -> Long.valueOf(text);
      case "date" -> (int) LocalDate.parse(text).toEpochDay();
      default -> throw unnamed(type);
    };
  }
}
