import java.io.FileInputStream;
import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** java.net.http through a proxy, in its default version. Each call prints one line of JSON; the test judges. */
public class Proxy {
    public static void main(String[] args) throws Exception {
        Map<String, String> to = new HashMap<>();
        for (int at = 0; at + 1 < args.length; at += 2) {
            to.put(args[at].substring(2), args[at + 1]);
        }
        String[] proxy = to.get("proxy").split(":");
        HttpClient client = HttpClient.newBuilder()
            .proxy(ProxySelector.of(new InetSocketAddress(proxy[0], Integer.parseInt(proxy[1]))))
            .sslContext(trusting(to.get("ca")))
            .build();
        call("get", client, to.get("url") + "/files/hello");
        call("secure", client, to.get("secure") + "/files/hello");
        call("denied", client, to.get("url") + "/secret");
        call("again", client, to.get("url") + "/files/hello");
    }

    static void call(String name, HttpClient client, String url) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url)).timeout(Duration.ofSeconds(60)).build();
        int status = client.send(request, BodyHandlers.ofString()).statusCode();
        System.out.println("{\"call\": \"" + name + "\", \"status\": " + status + "}");
    }

    static SSLContext trusting(String file) throws Exception {
        KeyStore roots = KeyStore.getInstance(KeyStore.getDefaultType());
        roots.load(null);
        try (FileInputStream pem = new FileInputStream(file)) {
            roots.setCertificateEntry("web", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(roots);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }
}
