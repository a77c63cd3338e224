// SPDX-License-Identifier: Apache-2.0
package fluss.spark;

import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.sources.StringContains;
import org.apache.spark.sql.sources.StringEndsWith;
import org.apache.spark.sql.sources.StringStartsWith;

/** Filters of Spark as conditions of the option {@code scan.filter}; what has no counterpart is left to Spark. */
final class Conditions {
  private static final Pattern QUOTED = Pattern.compile("`(?:[^`]|``)+`");

  private Conditions() {}

  /** The condition that means the same as a filter; null if there is none. */
  static String text(Filter filter) {
    if (filter instanceof EqualTo f) {
      return comparison(f.attribute(), "=", f.value());
    }
    if (filter instanceof GreaterThan f) {
      return comparison(f.attribute(), ">", f.value());
    }
    if (filter instanceof GreaterThanOrEqual f) {
      return comparison(f.attribute(), ">=", f.value());
    }
    if (filter instanceof LessThan f) {
      return comparison(f.attribute(), "<", f.value());
    }
    if (filter instanceof LessThanOrEqual f) {
      return comparison(f.attribute(), "<=", f.value());
    }
    if (filter instanceof In f) {
      List<String> values = new ArrayList<>();
      for (Object value : f.values()) {
        values.add(literal(value));
      }
      return values.isEmpty() || values.contains(null) ? null : test(f.attribute(), "in (" + String.join(", ", values) + ")");
    }
    if (filter instanceof EqualNullSafe f) {
      String equal = comparison(f.attribute(), "=", f.value());
      // Under a NOT it must be false for null, and not unknown as a comparison is.
      return f.value() == null ? test(f.attribute(), "is null")
          : equal == null ? null : "(" + equal + " and " + test(f.attribute(), "is not null") + ")";
    }
    if (filter instanceof StringStartsWith f) {
      return like(f.attribute(), "", f.value(), "%");
    }
    if (filter instanceof StringEndsWith f) {
      return like(f.attribute(), "%", f.value(), "");
    }
    if (filter instanceof StringContains f) {
      return like(f.attribute(), "%", f.value(), "%");
    }
    if (filter instanceof Not f) {
      String child = text(f.child());
      return child == null ? null : "not (" + child + ")";
    }
    if (filter instanceof IsNull f) {
      return test(f.attribute(), "is null");
    }
    if (filter instanceof IsNotNull f) {
      return test(f.attribute(), "is not null");
    }
    if (filter instanceof And f) {
      return both(f.left(), "and", f.right());
    }
    if (filter instanceof Or f) {
      return both(f.left(), "or", f.right());
    }
    return null;
  }

  private static String both(Filter left, String word, Filter right) {
    String one = text(left);
    String other = text(right);
    return one == null || other == null ? null : "(" + one + " " + word + " " + other + ")";
  }

  private static String comparison(String attribute, String sign, Object value) {
    String literal = literal(value);
    return literal == null ? null : test(attribute, sign + " " + literal);
  }

  private static String like(String attribute, String before, String value, String after) {
    if (literal(value) == null) {
      return null;
    }
    String plain = value.replace("!", "!!").replace("%", "!%").replace("_", "!_");
    return test(attribute, "like " + quoted(before + plain + after) + (plain.equals(value) ? "" : " escape '!'"));
  }

  /** A test of a column. Spark puts a name with dots into backquotes; dots outside of them lead to a nested field. */
  private static String test(String attribute, String condition) {
    if (QUOTED.matcher(attribute).matches()) {
      return attribute + " " + condition;
    }
    return attribute.contains(".") || attribute.contains("`") ? null : "`" + attribute + "` " + condition;
  }

  /** A value in the syntax of conditions. Floating-point numbers are left to Spark: NaN has rules of its own. */
  private static String literal(Object value) {
    if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long || value instanceof Boolean) {
      return value.toString();
    }
    if (value instanceof BigDecimal number) {
      return number.toPlainString();
    }
    if (value instanceof String text) {
      // A text that is no UTF-8 has this character, and is not equal to one that has it in the table.
      return text.indexOf('\uFFFD') < 0 ? quoted(text) : null;
    }
    if (value instanceof java.sql.Date day) {
      // Its own conversion loses the era.
      return literal(LocalDate.ofEpochDay(DateTimeUtils.fromJavaDate(day)));
    }
    if (value instanceof LocalDate day) {
      // Conditions know no other years.
      return day.getYear() < 1 || day.getYear() > 9999 ? null : "date " + quoted(day.toString());
    }
    if (value instanceof java.sql.Timestamp moment) {
      // Spark gives the local time of the Julian calendar before 1582, which is another instant.
      return instant(DateTimeUtils.microsToInstant(DateTimeUtils.fromJavaTimestamp(moment)));
    }
    if (value instanceof Instant moment) {
      return instant(moment);
    }
    if (value instanceof LocalDateTime moment) {
      return "timestamp " + quoted(moment.toLocalDate() + " " + moment.toLocalTime());
    }
    return null;
  }

  private static String instant(Instant moment) {
    return "timestamptz " + quoted(moment.toString().replace("T", " ").replace("Z", "+00:00"));
  }

  private static String quoted(String text) {
    return "'" + text.replace("'", "''") + "'";
  }
}
