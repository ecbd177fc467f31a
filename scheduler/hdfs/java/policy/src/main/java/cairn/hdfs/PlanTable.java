package cairn.hdfs;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;

/**
 * Chains for files that are about to be written: path to DataNodes, in pipeline order. The longest prefix of a path,
 * by whole names, wins. Entries expire; the table never holds more than {@code capacity} of them.
 */
public final class PlanTable {
    /** How many placements followed something, and how many could not. */
    public static final class Counts {
        private final AtomicLong used = new AtomicLong();
        private final AtomicLong refused = new AtomicLong();

        public AtomicLong used() {
            return used;
        }

        public AtomicLong refused() {
            return refused;
        }
    }

    /** One chain, when it ends (on the table's clock, in ms), and what became of it. */
    public static final class Plan {
        private final String path;
        private final List<String> hosts;
        private final long expiresMs;
        private final Counts counts = new Counts();

        Plan(String path, List<String> hosts, long expiresMs) {
            this.path = path;
            this.hosts = Collections.unmodifiableList(new ArrayList<>(hosts));
            this.expiresMs = expiresMs;
        }

        public String path() {
            return path;
        }

        public List<String> hosts() {
            return hosts;
        }

        public Counts counts() {
            return counts;
        }
    }

    /** The table that the NameNode's plugin fills and its placement policy reads. */
    public static final PlanTable SHARED = new PlanTable(100_000, () -> System.nanoTime() / 1_000_000);

    /** HDFS shell commands write to a file of this name's ending and rename it when it is complete. */
    private static final String COPYING = "._COPYING_";

    private final int capacity;
    private final LongSupplier clockMs;
    private final Map<String, Plan> plans = new ConcurrentHashMap<>();
    private final Counts counts = new Counts();

    public PlanTable(int capacity, LongSupplier clockMs) {
        this.capacity = capacity;
        this.clockMs = clockMs;
    }

    /** Keeps a chain for {@code ttlMs}; false if the table is full. */
    public synchronized boolean put(String path, List<String> hosts, long ttlMs) {
        if (!plans.containsKey(path) && plans.size() >= capacity) {
            expire();
            if (plans.size() >= capacity) {
                return false;
            }
        }
        plans.put(path, new Plan(path, hosts, clockMs.getAsLong() + ttlMs));
        return true;
    }

    /** Forgets one entry and gives it, or null if it was not there. */
    public synchronized Plan remove(String path) {
        return plans.remove(path);
    }

    /** The chain for a file: of the file itself, else of the nearest directory above it; null if there is none. */
    public Plan find(String file) {
        String path = file.endsWith(COPYING) ? file.substring(0, file.length() - COPYING.length()) : file;
        long now = clockMs.getAsLong();
        while (true) {
            Plan plan = plans.get(path.isEmpty() ? "/" : path);
            if (plan != null && plan.expiresMs > now) {
                return plan;
            }
            if (path.isEmpty()) {
                return null;
            }
            path = path.substring(0, Math.max(0, path.lastIndexOf('/')));
        }
    }

    /** All entries that are still valid, by path. */
    public synchronized List<Plan> list() {
        expire();
        return new ArrayList<>(new TreeMap<>(plans).values());
    }

    private void expire() {
        long now = clockMs.getAsLong();
        plans.values().removeIf(plan -> plan.expiresMs <= now);
    }

    /** Counts what the policy did with a chain. */
    public void count(Plan plan, boolean wasUsed) {
        for (Counts each : Arrays.asList(counts, plan.counts)) {
            (wasUsed ? each.used : each.refused).incrementAndGet();
        }
    }

    /** Over all plans so far. */
    public Counts counts() {
        return counts;
    }
}
