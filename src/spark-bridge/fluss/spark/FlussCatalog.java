// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Databases and tables of a Fluss server as a catalog of Spark; Python does what it is asked for. */
@SuppressWarnings("deprecation") // the methods with a StructType are those that all versions of Spark call
public class FlussCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  private static final String DEFAULT_DATABASE = "fluss";
  private static final String STATE_TABLE = "__spark_autocdc_";

  private String name;
  private Map<String, String> given;

  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap options) {
    name = catalogName;
    given = options.asCaseSensitiveMap();
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String[] defaultNamespace() {
    return new String[] {DEFAULT_DATABASE};
  }

  JsonNode call(String call, Map<String, ?> arguments) {
    return CatalogProcess.call(call, FlussSource.sessionOptions(), given, arguments);
  }

  // -- databases ------------------------------------------------------------------------------------------------

  @Override
  public String[][] listNamespaces() {
    List<String[]> found = new ArrayList<>();
    call("list_databases", Map.of()).forEach(database -> found.add(new String[] {database.asText()}));
    return found.toArray(new String[0][]);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) {
      return listNamespaces();
    }
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    try {
      return texts(call("load_database", Map.of("database", database(namespace))));
    } catch (CatalogProcess.Failure failure) {
      throw ofNamespace(failure, namespace);
    }
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) throws NamespaceAlreadyExistsException {
    try {
      call("create_database", Map.of("database", only(namespace), "properties", metadata));
    } catch (CatalogProcess.Failure failure) {
      if (failure.kind.equals("database exists")) {
        throw new NamespaceAlreadyExistsException(namespace);
      }
      throw failure;
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
    Map<String, String> set = new LinkedHashMap<>();
    List<String> remove = new ArrayList<>();
    for (NamespaceChange change : changes) {
      if (change instanceof NamespaceChange.SetProperty property) {
        set.put(property.property(), property.value());
      } else if (change instanceof NamespaceChange.RemoveProperty property) {
        remove.add(property.property());
      }
    }
    try {
      call("alter_database", Map.of("database", database(namespace), "set", set, "remove", remove));
    } catch (CatalogProcess.Failure failure) {
      throw ofNamespace(failure, namespace);
    }
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    try {
      call("drop_database", Map.of("database", database(namespace), "cascade", cascade));
      return true;
    } catch (CatalogProcess.Failure failure) {
      if (failure.kind.equals("database not empty")) {
        throw new NonEmptyNamespaceException(namespace);
      }
      throw ofNamespace(failure, namespace);
    }
  }

  // -- tables ---------------------------------------------------------------------------------------------------

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    List<Identifier> found = new ArrayList<>();
    try {
      String database = database(namespace);
      call("list_tables", Map.of("database", database))
          .forEach(table -> found.add(Identifier.of(new String[] {database}, table.asText())));
    } catch (CatalogProcess.Failure failure) {
      throw ofNamespace(failure, namespace);
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, Map.of());
  }

  /** The table as of a snapshot of its lake: {@code VERSION AS OF 12}. */
  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return load(ident, Map.of("scan.snapshot-id", version));
  }

  /** The table as of a time, in microseconds: {@code TIMESTAMP AS OF '2026-01-01'}. */
  @Override
  public Table loadTable(Identifier ident, long timestamp) throws NoSuchTableException {
    return load(ident, Map.of("scan.as-of.timestamp", String.valueOf(Math.floorDiv(timestamp, 1000))));
  }

  private Table load(Identifier ident, Map<String, String> more) throws NoSuchTableException {
    try {
      JsonNode described = call("load_table", Map.of("table", path(ident)));
      Map<String, String> options = tableOptions(path(ident));
      options.putAll(more);
      return new CatalogTable(this, path(ident), described, options);
    } catch (CatalogProcess.Failure failure) {
      throw ofTable(failure, ident);
    }
  }

  /** What reads and writes of a table are given: its name, and the options of the catalog. */
  private Map<String, String> tableOptions(String path) {
    Map<String, String> options = new LinkedHashMap<>();
    given.forEach((key, value) -> options.put(FlussSource.CATALOG_PREFIX + key, value));
    options.put("table", path);
    return options;
  }

  @Override
  public Table createTable(Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    try {
      call("create_table", new Draft(path(ident), schema, partitions, properties).arguments());
      return loadTable(ident);
    } catch (CatalogProcess.Failure failure) {
      if (failure.kind.equals("table exists")) {
        throw new TableAlreadyExistsException(ident);
      }
      throw ofNamespace(failure, ident.namespace());
    } catch (NoSuchTableException dropped) {
      throw new IllegalStateException("table " + path(ident) + " was dropped right after it was created", dropped);
    }
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    Map<String, String> set = new LinkedHashMap<>();
    List<String> remove = new ArrayList<>();
    List<Map<String, Object>> add = new ArrayList<>();
    Map<String, Boolean> nullable = new LinkedHashMap<>();
    for (TableChange change : changes) {
      if (change instanceof TableChange.SetProperty property) {
        set.put(property.property(), property.value());
      } else if (change instanceof TableChange.RemoveProperty property) {
        remove.add(property.property());
      } else if (change instanceof TableChange.AddColumn column && column.fieldNames().length == 1 && column.position() == null) {
        add.add(added(column));
      } else if (change instanceof TableChange.UpdateColumnNullability column && column.fieldNames().length == 1) {
        nullable.put(column.fieldNames()[0], column.nullable());
      } else {
        throw new UnsupportedOperationException(
            "ALTER TABLE " + path(ident) + ": a Fluss table takes new columns at its end, and properties, but no "
                + change.getClass().getSimpleName());
      }
    }
    try {
      call("alter_table", Map.of("table", path(ident), "set", set, "remove", remove, "add", add, "nullable", nullable));
    } catch (CatalogProcess.Failure failure) {
      // Spark wraps other exceptions in one that PySpark shows with its whole stack.
      throw new UnsupportedOperationException(ofTable(failure, ident).getMessage(), failure);
    }
    return loadTable(ident);
  }

  private static Map<String, Object> added(TableChange.AddColumn column) {
    Map<String, Object> found = new HashMap<>();
    String name = column.fieldNames()[0];
    if (column.defaultValue() != null) {
      throw new UnsupportedOperationException("column " + name + ": columns of Fluss have no default values; leave DEFAULT out");
    }
    found.put("name", name);
    found.put("comment", column.comment());
    StructField field = new StructField(name, column.dataType(), column.isNullable(), org.apache.spark.sql.types.Metadata.empty());
    found.put("schema", new StructType(new StructField[] {field}).json());
    return found;
  }

  @Override
  public boolean dropTable(Identifier ident) {
    return call("drop_table", Map.of("table", path(ident))).asBoolean();
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("Fluss cannot rename tables: create " + path(to) + " AS SELECT from the other");
  }

  // -- tables that are created or replaced with the rows of a query ------------------------------------------------

  @Override
  public StagedTable stageCreate(Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException {
    if (tableExists(ident)) {
      throw new TableAlreadyExistsException(ident);
    }
    return staged(ident, schema, partitions, properties, false); // another statement may make one meanwhile
  }

  @Override
  public StagedTable stageReplace(Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties)
      throws NoSuchTableException {
    if (!tableExists(ident)) {
      throw new NoSuchTableException(ident);
    }
    return staged(ident, schema, partitions, properties, true);
  }

  @Override
  public StagedTable stageCreateOrReplace(
      Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties) {
    return staged(ident, schema, partitions, properties, true);
  }

  private StagedTable staged(
      Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties, boolean replace) {
    Draft draft = new Draft(path(ident), schema, partitions, properties);
    return new StagedFlussTable(this, draft, tableOptions(path(ident)), replace);
  }

  /** What a new table is to be. */
  record Draft(String table, StructType schema, Transform[] partitions, Map<String, String> properties) {
    Map<String, Object> arguments() {
      return arguments(Map.of());
    }

    /** The arguments of calls that create it; options of the write may have parts of the layout as well. */
    Map<String, Object> arguments(Map<String, String> options) {
      List<Map<String, Object>> partitioning = new ArrayList<>();
      for (Transform transform : partitions) {
        partitioning.add(described(transform));
      }
      Map<String, Object> found = new HashMap<>();
      found.put("table", table);
      found.put("schema", schema.json());
      found.put("partitioning", partitioning);
      found.put("properties", properties);
      found.put("options", options);
      return found;
    }

    private static Map<String, Object> described(Transform transform) {
      Map<String, Object> found = new HashMap<>();
      List<String> columns = new ArrayList<>();
      for (NamedReference reference : transform.references()) {
        columns.add(String.join(".", reference.fieldNames()));
      }
      found.put("name", transform.name());
      found.put("columns", columns);
      found.put("text", transform.toString());
      if (transform instanceof org.apache.spark.sql.connector.expressions.BucketTransform bucket) {
        found.put("buckets", bucket.numBuckets().value());
      }
      return found;
    }
  }

  // -- procedures -------------------------------------------------------------------------------------------------

  @Override
  public UnboundProcedure loadProcedure(Identifier ident) {
    return LakeProcedure.load(this, ident);
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    return LakeProcedure.in(namespace);
  }

  // -- names and errors -----------------------------------------------------------------------------------------

  private static String path(Identifier ident) {
    String[] namespace = ident.namespace();
    // Fluss reserves names with this prefix, which Spark gives to the state tables of its pipelines.
    String table = ident.name().startsWith(STATE_TABLE) ? ident.name().substring(2) : ident.name();
    return (namespace.length == 0 ? DEFAULT_DATABASE : String.join(".", namespace)) + "." + table;
  }

  private static String database(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 1) {
      throw new NoSuchNamespaceException(namespace);
    }
    return namespace.length == 0 ? DEFAULT_DATABASE : namespace[0];
  }

  private static String only(String[] namespace) {
    if (namespace.length != 1) {
      throw new IllegalArgumentException("Fluss has databases, but none in databases: " + String.join(".", namespace));
    }
    return namespace[0];
  }

  private static RuntimeException ofNamespace(CatalogProcess.Failure failure, String[] namespace)
      throws NoSuchNamespaceException {
    if (failure.kind.equals("no database")) {
      throw new NoSuchNamespaceException(namespace);
    }
    return failure;
  }

  private static RuntimeException ofTable(CatalogProcess.Failure failure, Identifier ident) throws NoSuchTableException {
    if (failure.kind.equals("no table") || failure.kind.equals("no database")) {
      throw new NoSuchTableException(ident);
    }
    return failure;
  }

  static Map<String, String> texts(JsonNode node) {
    Map<String, String> found = new LinkedHashMap<>();
    node.fields().forEachRemaining(field -> found.put(field.getKey(), field.getValue().asText()));
    return found;
  }
}
