// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A table of the catalog, as Python described it. */
class CatalogTable extends FlussTable {
  private final FlussCatalog catalog;
  private final String path;
  private final JsonNode described;

  CatalogTable(FlussCatalog catalog, String path, JsonNode described, Map<String, String> options) {
    super((StructType) DataType.fromJson(described.get("schema").asText()), options);
    this.catalog = catalog;
    this.path = path;
    this.described = described;
  }

  @Override
  public String name() {
    return catalog.name() + "." + path;
  }

  @Override
  public Transform[] partitioning() {
    List<Transform> found = new ArrayList<>();
    described.get("partitioned_by").forEach(column -> found.add(Expressions.identity(column.asText())));
    return found.toArray(new Transform[0]);
  }

  @Override
  public Map<String, String> properties() {
    return FlussCatalog.texts(described.get("properties"));
  }
}
