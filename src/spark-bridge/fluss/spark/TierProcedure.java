// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** {@code CALL fluss.system.tier('shop.orders')}: moves what is new in a table to its lake. */
record TierProcedure(FlussCatalog catalog) implements UnboundProcedure, BoundProcedure {
  static final String NAME = "tier";
  private static final String[] SWITCHES = {"compact", "expire"};
  private static final String[] RESULTS = {"rows", "files", "bytes", "snapshot_id", "compacted", "expired"};

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "Move what is new in a table to its lake; compact its files and expire old snapshots.";
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
    ProcedureParameter[] found = new ProcedureParameter[1 + SWITCHES.length];
    found[0] = ProcedureParameter.in("table", DataTypes.StringType).build();
    for (int i = 0; i < SWITCHES.length; i++) {
      found[i + 1] = ProcedureParameter.in(SWITCHES[i], DataTypes.BooleanType).defaultValue("NULL").build();
    }
    return found;
  }

  @Override
  public Iterator<Scan> call(InternalRow input) {
    Map<String, Object> arguments = new HashMap<>();
    arguments.put("table", input.getUTF8String(0).toString());
    for (int i = 0; i < SWITCHES.length; i++) {
      arguments.put(SWITCHES[i], input.isNullAt(i + 1) ? null : input.getBoolean(i + 1));
    }
    return List.<Scan>of(new Report(catalog.call(NAME, arguments))).iterator();
  }

  /** What was done, as one row. */
  private record Report(JsonNode figures) implements LocalScan {
    @Override
    public StructType readSchema() {
      StructType found = new StructType();
      for (String name : RESULTS) {
        found = found.add(name, DataTypes.LongType);
      }
      return found;
    }

    @Override
    public InternalRow[] rows() {
      Object[] values = new Object[RESULTS.length];
      for (int i = 0; i < values.length; i++) {
        JsonNode figure = figures.get(RESULTS[i]);
        values[i] = figure.isNull() ? null : figure.asLong();
      }
      return new InternalRow[] {new GenericInternalRow(values)};
    }
  }
}
