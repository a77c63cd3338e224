// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.types.StructType;

/** About how many rows and bytes a read gives, where Python knows that. */
record ReadSize(OptionalLong numRows, OptionalLong sizeInBytes) implements Statistics {
  static final ReadSize UNKNOWN = new ReadSize(OptionalLong.empty(), OptionalLong.empty());

  /** The size of a read with some options, in the columns of a schema. */
  static ReadSize of(Map<String, String> options, StructType schema) {
    JsonNode found = ask("read_size", Map.of("options", options, "columns", List.of(schema.fieldNames())));
    if (found == null) {
      return UNKNOWN;
    }
    long rows = found.get("rows").asLong();
    double rowBytes = found.get("row_bytes").asDouble(schema.defaultSize()); // that of the types, if there is none
    return new ReadSize(OptionalLong.of(rows), OptionalLong.of((long) (rows * rowBytes)));
  }

  /** How many rows a read with some options gives, where that is known without reading them. */
  static OptionalLong count(Map<String, String> options) {
    JsonNode found = ask("read_count", Map.of("options", options));
    return found == null ? OptionalLong.empty() : OptionalLong.of(found.asLong());
  }

  private static JsonNode ask(String call, Map<String, ?> arguments) {
    try {
      JsonNode found = CatalogProcess.call(call, arguments);
      return found.isNull() ? null : found;
    } catch (RuntimeException failure) {
      return null; // the query runs without, and reports what is wrong
    }
  }
}
