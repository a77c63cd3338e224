// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.V2TableWriteExec;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.streaming.StreamingQueryListener;

/**
 * Reports which tables streams and batch writes fill, and from what, for the graph of the console.
 *
 * <p>Name it in {@code spark.extraListeners}. Listeners of single sessions would not see the batch writes of pipelines.
 */
public class FlowListener extends SparkListener {
  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof StreamingQueryListener.QueryProgressEvent query) {
      note("note_stream", Map.of("progress", query.progress().json()));
    } else if (event instanceof SparkListenerSQLExecutionEnd end && end.qe() != null) {
      noteBatch(end.qe(), end.duration() / 1e9);
    }
  }

  private static void noteBatch(QueryExecution query, double seconds) {
    LogicalPlan plan = query.analyzed();
    boolean writes =
        plan instanceof AppendData || plan instanceof OverwriteByExpression || plan instanceof OverwritePartitionsDynamic;
    if (!writes || !(query.executedPlan() instanceof V2TableWriteExec written) || written.commitProgress().isEmpty()) {
      return;
    }
    V2WriteCommand write = (V2WriteCommand) plan;
    String target = table(write.table());
    if (target == null) {
      return;
    }
    List<String> sources = new ArrayList<>();
    scala.collection.Iterator<LogicalPlan> leaves = write.query().collectLeaves().iterator();
    while (leaves.hasNext()) {
      String source = leaves.next() instanceof NamedRelation relation ? table(relation) : null;
      if (source != null) {
        sources.add(source);
      }
    }
    long rows = written.commitProgress().get().numOutputRows();
    note("note_batch", Map.of("target", target, "sources", sources, "rows", rows, "seconds", seconds));
  }

  private static String table(NamedRelation relation) {
    return relation instanceof DataSourceV2Relation found && found.table() instanceof FlussTable ? found.table().toString() : null;
  }

  private static void note(String call, Map<String, ?> arguments) {
    // The thread of listeners has whatever session was active where it was started.
    CatalogProcess.call(call, FlussSource.optionsOf(SparkSession.getDefaultSession().get()), Map.of(), arguments);
  }
}
