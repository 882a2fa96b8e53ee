"""http.client and urllib with ssl, as anybody would use them. Each call prints one line of JSON; the test judges."""

import argparse
import concurrent.futures
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request

# No call takes as long, except on a machine that is stuck.
PATIENCE = 20
BODY = bytes(i % 251 for i in range(1 << 20))


def main():
    parser = argparse.ArgumentParser()
    for name in ("url", "connect", "ca", "cert", "key", "protocol"):
        parser.add_argument(f"--{name}")
    to = parser.parse_args()
    resolve_to(to.connect)
    base = urllib.parse.urlsplit(to.url)
    context = tls(to) if base.scheme == "https" else None
    connection = connect(base, context)
    call("get", get, connection)
    call("echo", echo, connection)
    call("head", plain, connection, "HEAD", "/v1/orders/42")
    call("none", plain, connection, "GET", "/v1/orders/none")
    call("denied", plain, connection, "DELETE", "/v1/orders/42")
    call("reuse", reuse, connection)
    call("together", together, base, context)
    call("urllib", through_urllib, to.url, context)
    call("denied_upload", denied_upload, connection)


def resolve_to(address):
    """The name leads to this address, as if a resolver had said so."""
    real = socket.getaddrinfo
    socket.getaddrinfo = lambda host, *rest, **more: real(address, *rest, **more)


def tls(to):
    context = ssl.create_default_context(cafile=to.ca)
    # The default from Python 3.13 on.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if to.cert:
        context.load_cert_chain(to.cert, to.key)
    return context


def connect(base, context):
    if context is None:
        return http.client.HTTPConnection(base.hostname, base.port, timeout=PATIENCE)
    return http.client.HTTPSConnection(base.hostname, base.port, timeout=PATIENCE, context=context)


def call(name, run, *arguments):
    try:
        fields = run(*arguments)
    except Exception as error:
        fields = {"error": repr(error)}
    print(json.dumps({"call": name, **fields}), flush=True)


def fields_of(response, body):
    return {
        "status": response.status,
        "protocol": {10: "HTTP/1.0", 11: "HTTP/1.1"}[response.version],
        "length": len(body),
        "content_length": response.headers.get("Content-Length", ""),
        "type": response.headers.get("Content-Type", ""),
        "decision_id": response.headers.get("X-Nova-Decision-Id", ""),
    }


def get(connection):
    connection.request("GET", "/v1/orders/42?color=blue&color=%20red")
    response = connection.getresponse()
    body = response.read()
    return {**fields_of(response, body), "body": body.decode()}


def pieces():
    for start in range(0, len(BODY), 40_000):
        yield BODY[start : start + 40_000]


def echo(connection):
    connection.request("POST", "/v1/orders/echo", body=pieces(), headers={"TE": "trailers"}, encode_chunked=True)
    response = connection.getresponse()
    body = response.read()
    return {**fields_of(response, body), "same": body == BODY}


def plain(connection, method, path):
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    problem = json.loads(body)["status"] if response.status == 403 else 0
    return {**fields_of(response, body), "problem_status": problem}


def reuse(connection):
    return {"statuses": [plain(connection, "GET", f"/v1/orders/{i}")["status"] for i in range(20)]}


def together(base, context):
    """The app answers none of these before it has all of them."""

    def one(_):
        connection = connect(base, context)
        status = plain(connection, "GET", "/v1/orders/together")["status"]
        connection.close()
        return status

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        return {"statuses": list(threads.map(one, range(8)))}


def through_urllib(url, context):
    """An error status is an exception there, whose body can be read."""
    with urllib.request.urlopen(f"{url}/v1/orders/7", timeout=PATIENCE, context=context) as response:
        fine = response.status
        response.read()
    try:
        urllib.request.urlopen(f"{url}/v2", timeout=PATIENCE, context=context)
    except urllib.error.HTTPError as error:
        with error:
            return {"statuses": [fine, error.code], "problem_status": json.load(error)["status"]}
    return {"error": "no refusal"}


def denied_upload(connection):
    """The answer may come, and the connection may go, while the body is being sent."""
    try:
        connection.request("POST", "/v2/upload", body=pieces(), encode_chunked=True)
    except (BrokenPipeError, ConnectionResetError):
        pass
    response = connection.getresponse()
    body = response.read()
    return {**fields_of(response, body), "problem_status": json.loads(body)["status"]}


main()
