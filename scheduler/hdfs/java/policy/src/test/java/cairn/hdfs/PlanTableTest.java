package cairn.hdfs;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

/** Which plan holds for which path, and for how long. */
class PlanTableTest {
    private final AtomicLong now = new AtomicLong(1000);
    private final PlanTable table = new PlanTable(3, now::get);

    private List<String> hosts(String path) {
        PlanTable.Plan plan = table.find(path);
        return plan == null ? null : plan.hosts();
    }

    @Test
    void theLongestPrefixOfWholeNamesWins() {
        table.put("/c", List.of("a"), 10);
        table.put("/c/x", List.of("b"), 10);
        assertEquals(List.of("b"), hosts("/c/x"));
        assertEquals(List.of("b"), hosts("/c/x/chunk-0"));
        assertEquals(List.of("a"), hosts("/c/xy"));
        assertNull(hosts("/d"));
        assertNull(hosts("/"));
        table.put("/", List.of("root"), 10);
        assertEquals(List.of("root"), hosts("/d"));
        assertEquals(List.of("root"), hosts("/"));
    }

    @Test
    void aFileThatTheShellCopiesHasThePlanOfItsFinalName() {
        table.put("/c/x", List.of("b"), 10);
        assertEquals(List.of("b"), hosts("/c/x._COPYING_"));
    }

    @Test
    void anExpiredPlanHoldsNoMoreAndTheOneAboveItDoes() {
        table.put("/c", List.of("a"), 10);
        table.put("/c/x", List.of("b"), 5);
        now.addAndGet(5);
        assertEquals(List.of("a"), hosts("/c/x"));
        now.addAndGet(5);
        assertNull(hosts("/c/x"));
        assertTrue(table.list().isEmpty());
    }

    @Test
    void aFullTableRefusesUntilSomethingExpiresOrIsForgotten() {
        assertTrue(table.put("/1", List.of("a"), 5));
        assertTrue(table.put("/2", List.of("a"), 50));
        assertTrue(table.put("/3", List.of("a"), 50));
        assertFalse(table.put("/4", List.of("a"), 50));
        assertTrue(table.put("/3", List.of("b"), 50)); // an entry may always be replaced
        now.addAndGet(5);
        assertTrue(table.put("/4", List.of("a"), 50));
        assertEquals("/2", table.remove("/2").path());
        assertNull(table.remove("/2"));
        assertTrue(table.put("/5", List.of("a"), 50));
    }

    @Test
    void eachPlanAndTheTableCountWhatWasFollowed() {
        table.put("/1", List.of("a"), 50);
        table.put("/2", List.of("a"), 50);
        table.count(table.find("/1/x"), true);
        table.count(table.find("/1"), false);
        table.count(table.find("/2"), true);
        assertEquals(1, table.remove("/1").counts().used().get());
        assertEquals(1, table.find("/2").counts().used().get());
        assertEquals(0, table.find("/2").counts().refused().get());
        assertEquals(2, table.counts().used().get());
        assertEquals(1, table.counts().refused().get());
        table.put("/2", List.of("b"), 50);
        assertEquals(0, table.find("/2").counts().used().get()); // a new plan begins anew
    }
}
