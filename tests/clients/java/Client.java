// java.net.http.HttpClient, run from its source. Each call prints one line of JSON; the test judges.

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

final class Client {
    /** No call takes as long, except on a machine that is stuck. */
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private static final char[] NO_PASSWORD = new char[0];

    private final HttpClient http;
    private final String base;
    private final byte[] body = new byte[1 << 20];

    private Client(HttpClient http, String base) {
        this.http = http;
        this.base = base;
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) (i % 251);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> to = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            to.put(arguments[i].substring(2), arguments[i + 1]);
        }
        boolean isHttp2 = "h2".equals(to.get("protocol"));
        HttpClient.Builder builder = HttpClient.newBuilder()
                .connectTimeout(PATIENCE)
                .version(isHttp2 ? HttpClient.Version.HTTP_2 : HttpClient.Version.HTTP_1_1);
        if (to.get("url").startsWith("https:")) {
            builder.sslContext(tls(to));
        }
        new Client(builder.build(), to.get("url")).run();
        // The client's threads would linger.
        System.exit(0);
    }

    private void run() {
        call("get", () -> {
            HttpResponse<byte[]> got = send(request("/v1/orders/42?color=blue&color=%20red").GET());
            return fields(got) + ",\"body\":" + quoted(new String(got.body(), StandardCharsets.UTF_8));
        });
        call("echo", () -> echo(request("/v1/orders/echo")));
        call("expect", () -> echo(request("/v1/orders/echo").expectContinue(true)));
        call("head", () -> fields(send(request("/v1/orders/42").method("HEAD", HttpRequest.BodyPublishers.noBody()))));
        call("none", () -> fields(send(request("/v1/orders/none").GET())));
        call("denied", () -> fields(send(request("/v1/orders/42").DELETE())));
        call("reuse", () -> {
            List<Integer> statuses = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                statuses.add(send(request("/v1/orders/" + i).GET()).statusCode());
            }
            return "\"statuses\":" + statuses;
        });
        call("together", this::together);
        call("denied_upload", () -> fields(send(request("/v2/upload").POST(chunked()))));
    }

    /** The app answers none of these before it has all of them. */
    private String together() throws Exception {
        List<CompletableFuture<HttpResponse<byte[]>>> all = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            HttpRequest request = request("/v1/orders/together").GET().build();
            all.add(http.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()));
        }
        List<Integer> statuses = new ArrayList<>();
        for (CompletableFuture<HttpResponse<byte[]>> one : all) {
            statuses.add(one.get().statusCode());
        }
        return "\"statuses\":" + statuses;
    }

    private String echo(HttpRequest.Builder request) throws Exception {
        HttpResponse<byte[]> got = send(request.header("TE", "trailers").POST(chunked()));
        return fields(got) + ",\"same\":" + Arrays.equals(got.body(), body);
    }

    /** A body whose length the client does not know. */
    private HttpRequest.BodyPublisher chunked() {
        return HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(base + path)).timeout(PATIENCE);
    }

    private HttpResponse<byte[]> send(HttpRequest.Builder request) throws Exception {
        return http.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
    }

    private static void call(String name, Callable<String> run) {
        String fields;
        try {
            fields = run.call();
        } catch (Exception error) {
            fields = "\"error\":" + quoted(error.toString());
        }
        System.out.println("{\"call\":" + quoted(name) + "," + fields + "}");
    }

    private static String fields(HttpResponse<byte[]> got) {
        String text = new String(got.body(), StandardCharsets.UTF_8);
        boolean isProblem = got.statusCode() == 403 && text.contains("\"status\":403");
        return "\"status\":" + got.statusCode()
                + ",\"protocol\":" + quoted(got.version() == HttpClient.Version.HTTP_2 ? "HTTP/2.0" : "HTTP/1.1")
                + ",\"length\":" + got.body().length
                + ",\"content_length\":" + quoted(got.headers().firstValue("content-length").orElse(""))
                + ",\"type\":" + quoted(got.headers().firstValue("content-type").orElse(""))
                + ",\"decision_id\":" + quoted(got.headers().firstValue("x-nova-decision-id").orElse(""))
                + ",\"problem_status\":" + (isProblem ? 403 : 0);
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\' || c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }

    private static SSLContext tls(Map<String, String> to) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        int number = 0;
        for (Certificate ca : certificates(to.get("ca"))) {
            trusted.setCertificateEntry("ca" + number++, ca);
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
        own.load(null, null);
        if (to.containsKey("cert")) {
            String pem = Files.readString(Path.of(to.get("key"))).replaceAll("-----[A-Z ]+-----|\\s", "");
            PKCS8EncodedKeySpec key = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem));
            own.setKeyEntry("own", KeyFactory.getInstance("EC").generatePrivate(key), NO_PASSWORD, certificates(to.get("cert")));
        }
        keys.init(own, NO_PASSWORD);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    private static Certificate[] certificates(String file) throws Exception {
        try (InputStream pem = Files.newInputStream(Path.of(file))) {
            return CertificateFactory.getInstance("X.509").generateCertificates(pem).toArray(new Certificate[0]);
        }
    }
}
