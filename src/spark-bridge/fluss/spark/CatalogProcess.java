// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.sql.SparkSession;

/**
 * A Python process that works for catalogs, or for the optimizer: one of each per driver, started with the first call,
 * ended with the application.
 *
 * <p>A request is a line of JSON on its input, and the answer a line on its output. It ends when its input ends, also
 * when the driver is killed. Calls of one process wait for each other: procedures of catalogs may take hours, so that
 * the optimizer, which can plan without an answer, asks another process, and only for seconds.
 */
final class CatalogProcess {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final CatalogProcess CATALOGS = new CatalogProcess("catalogs", Long.MAX_VALUE);
  private static final CatalogProcess STATISTICS = new CatalogProcess("statistics", 10);

  private final String purpose;
  private final long secondsMax;
  private volatile Process process;
  private BufferedWriter requests;
  private BufferedReader answers;
  private SparkContext watched;
  private String python;
  private boolean answered;
  private String useless;

  private CatalogProcess(String purpose, long secondsMax) {
    this.purpose = purpose;
    this.secondsMax = secondsMax;
  }

  /** A call that failed: of which kind, and the message of Python. */
  static final class Failure extends IllegalArgumentException {
    private static final long serialVersionUID = 1;
    final String kind;

    Failure(String kind, String message) {
      super(message);
      this.kind = kind;
    }
  }

  /** Have Python run a call of its class {@code CatalogCalls}; throws Failure if it fails. */
  static JsonNode call(String name, Map<String, String> session, Map<String, String> options, Map<String, ?> arguments) {
    return result(
        CATALOGS, Map.of("call", name, "session", session, "options", options, "arguments", arguments));
  }

  /**
   * Have Python run a function of its module {@code statistics} about a read; throws Failure if it fails.
   *
   * <p>A process that does not answer in time is ended. A Python that ends before its first answer is not tried again.
   */
  static JsonNode call(String name, Map<String, ?> arguments) {
    return result(STATISTICS, Map.of("call", name, "arguments", arguments));
  }

  private static JsonNode result(CatalogProcess process, Map<String, ?> request) {
    JsonNode answer = process.ask(request);
    if (answer.has("error")) {
      throw new Failure(answer.get("error").asText(), answer.get("message").asText());
    }
    return answer.get("result");
  }

  private synchronized JsonNode ask(Map<String, ?> request) {
    String line = JSON.valueToTree(request).toString();
    try {
      start();
    } catch (IOException error) {
      throw new IllegalStateException(
          "The catalog process of Fluss cannot be started: " + error.getMessage()
              + ". Set PYSPARK_PYTHON to a Python that has fluss-python.", error);
    }
    IOException broken = null;
    Process asked = process;
    CompletableFuture<Void> deadline = new CompletableFuture<Void>().orTimeout(secondsMax, TimeUnit.SECONDS);
    deadline.exceptionally(late -> {
      asked.destroyForcibly();
      return null;
    });
    try {
      requests.write(line);
      requests.newLine();
      requests.flush();
      String answer = answers.readLine();
      if (answer != null) {
        answered = true;
        return JSON.readTree(answer);
      }
    } catch (IOException error) {
      broken = error;
    } finally {
      deadline.complete(null);
    }
    if (this == STATISTICS && !answered && !deadline.isCompletedExceptionally()) {
      useless = python;
    }
    stop();
    throw new IllegalStateException(
        "The catalog process of Fluss ended during the call " + request.get("call")
            + ", which may have been carried out. Its error is in the log of the driver; the next call starts it again.", broken);
  }

  private void start() throws IOException {
    if (process != null && process.isAlive()) {
      return;
    }
    SparkContext context = SparkSession.active().sparkContext();
    python = python(context);
    if (python.equals(useless)) {
      throw new IOException(python + " ended before it answered");
    }
    ProcessBuilder builder = new ProcessBuilder(python, "-m", "fluss.spark.catalog_process", purpose);
    String path = System.getenv("PYTHONPATH");
    builder.environment().put("PYTHONPATH",
        path == null ? PythonUtils.sparkPythonPath() : path + File.pathSeparator + PythonUtils.sparkPythonPath());
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    process = builder.start();
    answered = false;
    requests = process.outputWriter(StandardCharsets.UTF_8);
    answers = process.inputReader(StandardCharsets.UTF_8);
    if (watched != context) {
      watched = context;
      context.addSparkListener(
          new SparkListener() {
            @Override
            public void onApplicationEnd(SparkListenerApplicationEnd end) {
              Process running = process; // without the lock, which a call holds until it is answered
              if (running != null) {
                running.destroy();
              }
            }
          });
    }
  }

  private static String python(SparkContext context) {
    String variable = System.getenv("PYSPARK_PYTHON");
    return context.conf().get("spark.pyspark.python", variable == null ? "python3" : variable);
  }

  private void stop() {
    if (process != null) {
      try {
        requests.close(); // it ends when its input ends
      } catch (IOException error) {
        process.destroy();
      }
      process = null;
    }
  }
}
