import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Gets one URL through the proxy of the environment, with the trust store that the environment gives the JVM. */
class Get {
    public static void main(String[] arguments) throws Exception {
        URI proxy = URI.create(System.getenv("HTTPS_PROXY"));
        HttpClient client = HttpClient.newBuilder()
            .proxy(ProxySelector.of(new InetSocketAddress(proxy.getHost(), proxy.getPort())))
            .build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0])).build();
        System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
