// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;

/**
 * A table that is created, or replaced, with the rows of a query.
 *
 * <p>It is created when it is written to, since options of the write may name its primary key. Rows that replace a table
 * are written beside it, and take its place when all of them are there.
 */
class StagedFlussTable extends FlussTable implements StagedTable {
  private final FlussCatalog catalog;
  private final FlussCatalog.Draft draft;
  private final boolean replace;
  private Map<String, Object> arguments;
  private String staged;

  StagedFlussTable(FlussCatalog catalog, FlussCatalog.Draft draft, Map<String, String> options, boolean replace) {
    super(draft.schema(), options);
    this.catalog = catalog;
    this.draft = draft;
    this.replace = replace;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    stage(info.options().asCaseSensitiveMap());
    WriteBuilder builder = newWriteBuilder(info, Map.of("table", staged));
    return new SupportsTruncate() {
      @Override
      public WriteBuilder truncate() {
        return builder; // it has no rows yet
      }

      @Override
      public Write build() {
        return builder.build();
      }
    };
  }

  private void stage(Map<String, String> options) {
    arguments = new HashMap<>(draft.arguments(options));
    arguments.put("replace", replace);
    staged = catalog.call("stage_table", arguments).asText();
    arguments.put("staged", staged);
  }

  @Override
  public void commitStagedChanges() {
    if (staged == null) {
      stage(Map.of()); // there is no query
    }
    catalog.call("commit_table", arguments);
  }

  @Override
  public void abortStagedChanges() {
    if (staged != null) {
      catalog.call("abort_table", Map.of("staged", staged));
    }
  }
}
