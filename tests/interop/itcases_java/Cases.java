// SPDX-License-Identifier: Apache-2.0
import java.util.ArrayList;
import java.util.List;
import org.junit.platform.engine.DiscoverySelector;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/** Runs the classes or methods (Class#method) of its arguments; one line per case: result, name, reason, by tabs. */
public final class Cases implements TestExecutionListener {
    private Cases() {}

    public static void main(String[] arguments) {
        List<DiscoverySelector> selectors = new ArrayList<>();
        for (String one : arguments) {
            selectors.add(one.contains("#")
                    ? DiscoverySelectors.selectMethod(one) : DiscoverySelectors.selectClass(one));
        }
        LauncherDiscoveryRequest request = LauncherDiscoveryRequestBuilder.request().selectors(selectors)
                .configurationParameter("junit.jupiter.execution.timeout.default", "75 s").build();
        LauncherFactory.create().execute(request, new Cases());
        System.exit(0); // threads of a case that was left in the middle must not keep the process
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        print("skipped", test, reason);
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        if (test.isTest() || result.getStatus() != TestExecutionResult.Status.SUCCESSFUL) {
            print(result.getStatus().name().toLowerCase(), test, result.getThrowable().map(Cases::reason).orElse(""));
        }
    }

    private static String reason(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        for (StackTraceElement frame : error.getStackTrace()) {
            if (frame.getClassName().endsWith("ITCase")) {
                text.append(" (").append(frame.getFileName()).append(':').append(frame.getLineNumber()).append(')');
                break;
            }
        }
        Throwable cause = error.getCause();
        return cause == null || error.toString().contains(cause.toString()) ? text.toString() : text + " <- " + reason(cause);
    }

    private static synchronized void print(String result, TestIdentifier test, String reason) {
        String name = test.getUniqueId().replaceAll("\\[engine:[^]]*]/|\\[class:[\\w.]*\\.(\\w+)]/?", "$1");
        name = name.replaceAll("\\[(?:method|test-template|test-template-invocation|nested-class):#?([^]]*)]/?", ".$1");
        System.out.println(result + "\t" + name.replaceAll("\\([^)]*\\)", "") + "\t" + reason.replaceAll("\\s+", " "));
    }
}
