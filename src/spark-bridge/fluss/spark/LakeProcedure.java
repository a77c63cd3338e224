// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Procedures for the lake of a table, such as {@code CALL fluss.system.tier('shop.orders')}. Python carries them out. */
enum LakeProcedure {
  TIER(
      "Move what is new in a table to its lake; compact its files and expire old snapshots.",
      new StructType().add("compact", DataTypes.BooleanType).add("expire", DataTypes.BooleanType),
      "rows", "files", "bytes", "snapshot_id", "compacted", "expired"),
  COMPACT(
      "Rewrite the small files of a table in its lake into few, in buckets that have at least min_files of them.",
      new StructType().add("min_files", DataTypes.IntegerType),
      "compacted", "snapshot_id"),
  EXPIRE(
      "Expire snapshots of a table in its lake that are older than a time, but for the newest ones.",
      new StructType().add("older_than", DataTypes.TimestampType).add("keep", DataTypes.IntegerType),
      "expired");

  private static final String[] NAMESPACE = {"system"};

  private final String description;
  private final StructType optional;
  private final String[] results;

  LakeProcedure(String description, StructType optional, String... results) {
    this.description = description;
    this.optional = optional;
    this.results = results;
  }

  Identifier ident() {
    return Identifier.of(NAMESPACE, name().toLowerCase(Locale.ROOT));
  }

  /** The names of all procedures in a namespace. */
  static Identifier[] in(String[] namespace) {
    return Arrays.equals(namespace, NAMESPACE)
        ? Stream.of(values()).map(LakeProcedure::ident).toArray(Identifier[]::new)
        : new Identifier[0];
  }

  static UnboundProcedure load(FlussCatalog catalog, Identifier ident) {
    for (LakeProcedure procedure : values()) {
      if (procedure.ident().equals(ident)) {
        return new OfCatalog(catalog, procedure);
      }
    }
    throw new UnsupportedOperationException(
        "there is no procedure " + catalog.name() + "." + ident + "; there are " + Arrays.toString(in(NAMESPACE)));
  }

  /** A procedure on the tables of a catalog. */
  private record OfCatalog(FlussCatalog catalog, LakeProcedure procedure) implements UnboundProcedure, BoundProcedure {
    @Override
    public String name() {
      return procedure.ident().name();
    }

    @Override
    public String description() {
      return procedure.description;
    }

    @Override
    public BoundProcedure bind(StructType input) {
      return this;
    }

    @Override
    public boolean isDeterministic() {
      return false;
    }

    @Override
    public ProcedureParameter[] parameters() {
      ProcedureParameter table = ProcedureParameter.in("table", DataTypes.StringType).build();
      Stream<ProcedureParameter> others = Stream.of(procedure.optional.fields())
          .map(field -> ProcedureParameter.in(field.name(), field.dataType()).defaultValue("NULL").build());
      return Stream.concat(Stream.of(table), others).toArray(ProcedureParameter[]::new);
    }

    @Override
    public Iterator<Scan> call(InternalRow input) {
      Map<String, Object> arguments = new HashMap<>();
      arguments.put("table", input.getUTF8String(0).toString());
      StructField[] optional = procedure.optional.fields();
      for (int i = 0; i < optional.length; i++) {
        Object value = input.isNullAt(i + 1) ? null : input.get(i + 1, optional[i].dataType());
        arguments.put(optional[i].name(), value);
      }
      return List.<Scan>of(new Report(procedure.results, catalog.call(name(), arguments))).iterator();
    }
  }

  /** What was done, as one row. */
  private record Report(String[] results, JsonNode figures) implements LocalScan {
    @Override
    public StructType readSchema() {
      StructType found = new StructType();
      for (String name : results) {
        found = found.add(name, DataTypes.LongType);
      }
      return found;
    }

    @Override
    public InternalRow[] rows() {
      Object[] values = new Object[results.length];
      for (int i = 0; i < values.length; i++) {
        JsonNode figure = figures.get(results[i]);
        values[i] = figure.isNull() ? null : figure.asLong();
      }
      return new InternalRow[] {new GenericInternalRow(values)};
    }
  }
}
