// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The data source {@code fluss} for Spark's optimizer, in front of the one in Python.
 *
 * <p>Spark asks Java classes which columns and filters a query needs, and Python sources not. This class answers, and
 * hands on what it learns as the schema and the options of the Python source, which does everything else.
 */
public class FlussSource implements TableProvider, DataSourceRegister {
  static final String NAME = "fluss";

  /** Options of the session, for reads and writes that do not give them themselves, have this prefix. */
  private static final String SESSION_PREFIX = "session.";

  /** Those of a catalog, which come before those of the session, have this one. */
  static final String CATALOG_PREFIX = "catalog.";

  private static final String CONF_PREFIX = "spark.fluss.";

  @Override
  public String shortName() {
    return NAME;
  }

  /** A new Python source: Spark keeps what the first query of a source planned for all later ones. */
  static PythonDataSourceV2 python() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(NAME);
    return source;
  }

  /** The options under {@code spark.fluss.} of the configuration of the session. */
  static Map<String, String> sessionOptions() {
    return optionsOf(SparkSession.active());
  }

  static Map<String, String> optionsOf(SparkSession session) {
    Map<String, String> found = new LinkedHashMap<>();
    scala.collection.Iterator<scala.Tuple2<String, String>> settings = session.conf().getAll().iterator();
    while (settings.hasNext()) {
      scala.Tuple2<String, String> setting = settings.next();
      if (setting._1().startsWith(CONF_PREFIX)) {
        found.put(setting._1().substring(CONF_PREFIX.length()), setting._2());
      }
    }
    return found;
  }

  /** The options of a query, and those of the session. */
  static CaseInsensitiveStringMap withSession(Map<String, String> options) {
    Map<String, String> all = new LinkedHashMap<>();
    sessionOptions().forEach((name, value) -> all.put(SESSION_PREFIX + name, value));
    all.putAll(options);
    return new CaseInsensitiveStringMap(all);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return python().inferSchema(withSession(options.asCaseSensitiveMap()));
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new FlussTable(schema, properties);
  }
}
