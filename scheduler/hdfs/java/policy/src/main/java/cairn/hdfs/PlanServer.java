package cairn.hdfs;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.util.ServicePlugin;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The plan table's HTTP door, inside the NameNode ({@code dfs.namenode.plugins}). PUT, GET and DELETE /v1/plans; every
 * request carries the token of {@code cairn.plan.token-file}; every answer names this NameNode's run, so that a client
 * sees that the table is new and empty.
 */
public final class PlanServer extends Configured implements ServicePlugin {
    public static final String ADDRESS_KEY = "cairn.plan.address";
    public static final String ADDRESS_DEFAULT = "127.0.0.1:9875";
    public static final String TOKEN_FILE_KEY = "cairn.plan.token-file";
    public static final String RUN_HEADER = "Cairn-Run";

    static final int BODY_BYTES_MAX = 1 << 20;
    static final int HOSTS_MAX = 16;
    static final int PATH_CHARACTERS_MAX = 8000;
    static final long TTL_MS_DEFAULT = 600_000;
    static final long TTL_MS_MAX = 86_400_000;

    /** A DataNode by host name, by IP address, or by either and its data port. */
    private static final Pattern HOST = Pattern.compile("[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?");

    private static final Logger LOG = LoggerFactory.getLogger(PlanServer.class);
    private static final int THREADS = 4;

    /** How long a request may take to arrive, and an answer to be read: no client holds a thread for longer. */
    private static final int CALL_SECONDS = 5;

    private final ObjectMapper json = new ObjectMapper();
    private final PlanTable table;
    private final String run = UUID.randomUUID().toString();
    private byte[] token;
    private HttpServer server;
    private ExecutorService threads;

    /** What the NameNode calls. */
    public PlanServer() {
        this(PlanTable.SHARED);
    }

    public PlanServer(PlanTable table) {
        this.table = table;
    }

    @Override
    public void start(Object service) {
        String file = getConf().get(TOKEN_FILE_KEY, "");
        String address = getConf().get(ADDRESS_KEY, ADDRESS_DEFAULT);
        int colon = address.lastIndexOf(':');
        if (file.isEmpty()) {
            throw new IllegalStateException(TOKEN_FILE_KEY + " is not set: name a file that holds the token");
        }
        try {
            String secret = new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8).trim();
            token = secret.getBytes(StandardCharsets.UTF_8);
            if (token.length == 0) {
                throw new IllegalStateException(TOKEN_FILE_KEY + ": " + file + " is empty");
            }
            System.setProperty("sun.net.httpserver.nodelay", "true"); // else an answer may wait 40 ms
            System.setProperty("sun.net.httpserver.maxReqTime", String.valueOf(CALL_SECONDS));
            System.setProperty("sun.net.httpserver.maxRspTime", String.valueOf(CALL_SECONDS));
            System.setProperty("sun.net.httpserver.clockTick", "1000"); // else those are counted in tens of seconds
            server = HttpServer.create(
                    new InetSocketAddress(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1))), 0);
        } catch (IOException error) {
            throw new UncheckedIOException("plan table at " + address + " with token file " + file, error);
        }
        threads = Executors.newFixedThreadPool(THREADS, task -> {
            Thread thread = new Thread(task, "plan-table");
            thread.setDaemon(true);
            return thread;
        });
        server.setExecutor(threads);
        server.createContext("/", this::answer);
        server.start();
        LOG.info("Plan table at http://{}:{}/v1/plans", server.getAddress().getHostString(), port());
    }

    /** Where it listens. */
    public int port() {
        return server.getAddress().getPort();
    }

    @Override
    public void stop() {
        if (server != null) {
            server.stop(0);
            threads.shutdownNow();
        }
    }

    @Override
    public void close() {
        stop();
    }

    private static final class Answer {
        final int status;
        final JsonNode body;

        Answer(int status, JsonNode body) {
            this.status = status;
            this.body = body;
        }
    }

    /** One plan of a request. */
    private static final class Entry {
        final String path;
        final List<String> hosts;
        final long ttlMs;

        Entry(String path, List<String> hosts, long ttlMs) {
            this.path = path;
            this.hosts = hosts;
            this.ttlMs = ttlMs;
        }
    }

    private void answer(HttpExchange exchange) throws IOException {
        try {
            Answer answer;
            try {
                byte[] body = body(exchange);
                answer = allowed(exchange) ? handle(exchange, body) : error(401, "Authorization: Bearer TOKEN is needed");
            } catch (IllegalArgumentException | JsonProcessingException problem) {
                answer = error(400, problem.getMessage());
            }
            byte[] bytes = json.writeValueAsBytes(answer.body);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.getResponseHeaders().set(RUN_HEADER, run);
            exchange.sendResponseHeaders(answer.status, bytes.length);
            exchange.getResponseBody().write(bytes);
        } finally {
            exchange.close();
        }
    }

    private static byte[] body(HttpExchange exchange) throws IOException {
        try (InputStream stream = exchange.getRequestBody()) {
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            byte[] piece = new byte[8192];
            for (int read = stream.read(piece); read >= 0; read = stream.read(piece)) {
                body.write(piece, 0, read);
                if (body.size() > BODY_BYTES_MAX) {
                    throw new IllegalArgumentException("body: at most " + BODY_BYTES_MAX + " bytes");
                }
            }
            return body.toByteArray();
        }
    }

    private boolean allowed(HttpExchange exchange) {
        String given = exchange.getRequestHeaders().getFirst("Authorization");
        return given != null && given.startsWith("Bearer ")
                && MessageDigest.isEqual(given.substring("Bearer ".length()).getBytes(StandardCharsets.UTF_8), token);
    }

    private Answer handle(HttpExchange exchange, byte[] body) throws IOException {
        if (!exchange.getRequestURI().getPath().equals("/v1/plans")) {
            return error(404, "no such path: there is /v1/plans");
        }
        switch (exchange.getRequestMethod()) {
            case "GET":
                return new Answer(200, list());
            case "PUT":
                return put(json.readTree(body));
            case "DELETE":
                return delete(json.readTree(body));
            default:
                return error(405, "GET, PUT or DELETE");
        }
    }

    private JsonNode list() {
        ObjectNode all = json.createObjectNode();
        ArrayNode plans = all.putArray("plans");
        table.list().forEach(plan -> describe(plan, plans.addObject()));
        return count(all.put("run", run), table.counts());
    }

    private static void describe(PlanTable.Plan plan, ObjectNode entry) {
        plan.hosts().forEach(count(entry.put("path", plan.path()), plan.counts()).putArray("hosts")::add);
    }

    private static ObjectNode count(ObjectNode entry, PlanTable.Counts counts) {
        return entry.put("used", counts.used().get()).put("refused", counts.refused().get());
    }

    private Answer put(JsonNode body) {
        List<Entry> parsed = new ArrayList<>(); // all of them, before the first is kept
        for (JsonNode entry : list(body, "plans")) {
            List<String> hosts = new ArrayList<>();
            list(entry, "hosts").forEach(host -> hosts.add(host.asText()));
            if (hosts.isEmpty() || hosts.size() > HOSTS_MAX || !hosts.stream().allMatch(host -> HOST.matcher(host).matches())) {
                throw new IllegalArgumentException("hosts: 1 to " + HOSTS_MAX + " DataNodes, by host name, IP or IP:port");
            }
            long ttlMs = entry.path("ttl_ms").asLong(TTL_MS_DEFAULT);
            if (ttlMs < 1 || ttlMs > TTL_MS_MAX) {
                throw new IllegalArgumentException("ttl_ms: 1 to " + TTL_MS_MAX);
            }
            parsed.add(new Entry(path(entry.path("path")), hosts, ttlMs));
        }
        for (Entry plan : parsed) {
            if (!table.put(plan.path, plan.hosts, plan.ttlMs)) {
                return error(507, "the table is full: forget what is written, or give shorter ttl_ms");
            }
        }
        return new Answer(200, json.createObjectNode().put("run", run).put("kept", parsed.size()));
    }

    private Answer delete(JsonNode body) {
        ObjectNode answer = json.createObjectNode().put("run", run);
        ArrayNode forgotten = answer.putArray("forgotten");
        for (JsonNode path : list(body, "paths")) {
            PlanTable.Plan plan = table.remove(path(path));
            if (plan != null) {
                describe(plan, forgotten.addObject());
            }
        }
        return new Answer(200, answer);
    }

    private static Iterable<JsonNode> list(JsonNode body, String field) {
        if (!body.path(field).isArray()) {
            throw new IllegalArgumentException(field + ": a list is needed");
        }
        return body.path(field);
    }

    private static String path(JsonNode node) {
        String path = node.asText();
        if (!path.startsWith("/") || path.length() > PATH_CHARACTERS_MAX || (path.endsWith("/") && path.length() > 1)) {
            throw new IllegalArgumentException("path: '" + path + "' must start with / and not end with it");
        }
        return path;
    }

    private Answer error(int status, String message) {
        return new Answer(status, json.createObjectNode().put("error", message));
    }
}
