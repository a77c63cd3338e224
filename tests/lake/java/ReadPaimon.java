// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.options.Options;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.source.ReadBuilder;

/** Prints the id and name of every row of tables, sorted: what a Java program sees of a lake that we wrote. */
public class ReadPaimon {
    public static void main(String[] arguments) throws Exception {
        Options options = new Options();
        options.set("warehouse", arguments[0]);
        Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
        for (int i = 1; i < arguments.length; i++) {
            Table table = catalog.getTable(Identifier.fromString(arguments[i]));
            int name = table.rowType().getFieldIndex("name");
            ReadBuilder builder = table.newReadBuilder();
            List<String> rows = new ArrayList<>();
            builder.newRead()
                    .createReader(builder.newScan().plan())
                    .forEachRemaining(row -> rows.add(row.getLong(0) + ":" + row.getString(name)));
            Collections.sort(rows);
            System.out.println(arguments[i] + " " + String.join(",", rows));
        }
    }
}
