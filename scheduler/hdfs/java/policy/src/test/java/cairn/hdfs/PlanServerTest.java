package cairn.hdfs;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The plan table's door: what it takes, what it refuses, and from whom. */
class PlanServerTest {
    @TempDir
    Path directory;

    private final PlanTable table = new PlanTable(2, () -> 0);
    private final PlanServer server = new PlanServer(table);
    private final HttpClient client = HttpClient.newHttpClient();

    @BeforeEach
    void start() throws Exception {
        server.setConf(settings("secret\n"));
        server.start(null);
    }

    @AfterEach
    void stop() {
        server.stop();
    }

    private Configuration settings(String token) throws Exception {
        Path file = Files.writeString(directory.resolve("token"), token);
        Configuration conf = new Configuration(false);
        conf.set(PlanServer.ADDRESS_KEY, "127.0.0.1:0");
        conf.set(PlanServer.TOKEN_FILE_KEY, file.toString());
        return conf;
    }

    private HttpResponse<String> call(String method, String path, String token, String body) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + server.port() + path);
        HttpRequest request = HttpRequest.newBuilder(uri)
                .method(method, BodyPublishers.ofString(body))
                .header("Authorization", "Bearer " + token)
                .timeout(Duration.ofSeconds(60))
                .build();
        return client.send(request, BodyHandlers.ofString());
    }

    private HttpResponse<String> call(String method, String body) throws Exception {
        return call(method, "/v1/plans", "secret", body);
    }

    @Test
    void plansArePutListedAndDeleted() throws Exception {
        assertEquals(200, call("PUT", "{\"plans\":[{\"path\":\"/a\",\"hosts\":[\"h1\",\"10.0.0.2:9866\"]}]}").statusCode());
        assertEquals(List.of("h1", "10.0.0.2:9866"), table.find("/a").hosts());
        HttpResponse<String> listed = call("GET", "");
        assertTrue(listed.body().contains("{\"path\":\"/a\",\"used\":0,\"refused\":0,\"hosts\":[\"h1\",\"10.0.0.2:9866\"]}"), listed.body());
        assertTrue(listed.body().contains(listed.headers().firstValue(PlanServer.RUN_HEADER).orElseThrow()));
        table.count(table.find("/a"), true);
        String forgotten = call("DELETE", "{\"paths\":[\"/a\",\"/b\"]}").body();
        assertTrue(forgotten.contains("\"forgotten\":[{\"path\":\"/a\",\"used\":1,\"refused\":0,"), forgotten);
        assertNull(table.find("/a"));
    }

    @Test
    void withoutTheTokenNothingIsSaidOrDone() throws Exception {
        HttpResponse<String> refused = call("PUT", "/v1/plans", "guess", "{\"plans\":[{\"path\":\"/a\",\"hosts\":[\"h\"]}]}");
        assertEquals(401, refused.statusCode());
        assertEquals(401, call("GET", "/v1/plans", "", "").statusCode());
        assertNull(table.find("/a"));
    }

    @Test
    void aBadEntryIsNamedAndNoneIsKept() throws Exception {
        String good = "{\"path\":\"/a\",\"hosts\":[\"h\"]}";
        for (String bad : List.of(
                "{\"path\":\"a\",\"hosts\":[\"h\"]}",
                "{\"path\":\"/b/\",\"hosts\":[\"h\"]}",
                "{\"path\":\"/b\",\"hosts\":[]}",
                "{\"path\":\"/b\",\"hosts\":[\"h:port\"]}",
                "{\"path\":\"/b\",\"hosts\":[\"\"]}",
                "{\"path\":\"/b\",\"hosts\":\"h\"}",
                "{\"path\":\"/b\",\"hosts\":[\"h\"],\"ttl_ms\":0}",
                "{\"hosts\":[\"h\"]}")) {
            HttpResponse<String> answer = call("PUT", "{\"plans\":[" + good + "," + bad + "]}");
            assertEquals(400, answer.statusCode(), bad);
            assertTrue(answer.body().contains("error"), bad);
            assertNull(table.find("/a"), bad);
        }
        assertEquals(400, call("PUT", "{").statusCode());
        assertEquals(400, call("PUT", "x".repeat(PlanServer.BODY_BYTES_MAX + 1)).statusCode());
        assertEquals(404, call("GET", "/v1/other", "secret", "").statusCode());
        assertEquals(405, call("POST", "{}").statusCode());
    }

    @Test
    void whoNeverEndsARequestHoldsNobodyUp() throws Exception {
        List<Socket> strangers = new ArrayList<>();
        try {
            for (int each = 0; each < 20; each++) {
                Socket stranger = new Socket("127.0.0.1", server.port());
                strangers.add(stranger);
                String begin = "PUT /v1/plans HTTP/1.1\r\nContent-Length: 9\r\n" + (each % 2 == 0 ? "" : "\r\n{");
                stranger.getOutputStream().write(begin.getBytes(StandardCharsets.US_ASCII));
            }
            assertEquals(200, call("GET", "").statusCode());
        } finally {
            for (Socket stranger : strangers) {
                stranger.close();
            }
        }
    }

    @Test
    void aFullTableSaysSo() throws Exception {
        String three = "{\"plans\":[{\"path\":\"/a\",\"hosts\":[\"h\"]},{\"path\":\"/b\",\"hosts\":[\"h\"]},"
                + "{\"path\":\"/c\",\"hosts\":[\"h\"]}]}";
        assertEquals(507, call("PUT", three).statusCode());
    }

    @Test
    void itDoesNotStartWithoutAToken() throws Exception {
        PlanServer other = new PlanServer(table);
        other.setConf(settings("\n"));
        assertThrows(IllegalStateException.class, () -> other.start(null));
        other.setConf(new Configuration(false));
        assertThrows(IllegalStateException.class, () -> other.start(null));
    }
}
