"""urllib through a proxy. Each call prints one line of JSON; the test judges."""

import argparse
import json
import ssl
import urllib.error
import urllib.request

PATIENCE = 60


def main():
    parser = argparse.ArgumentParser()
    for name in ("url", "secure", "proxy", "ca"):
        parser.add_argument(f"--{name}")
    to = parser.parse_args()
    proxies = urllib.request.ProxyHandler({"http": f"http://{to.proxy}", "https": f"http://{to.proxy}"})
    context = ssl.create_default_context(cafile=to.ca)
    opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))
    call("get", opener, f"{to.url}/files/hello")
    call("secure", opener, f"{to.secure}/files/hello")
    call("denied", opener, f"{to.url}/secret")
    call("again", opener, f"{to.url}/files/hello")


def call(name, opener, url):
    try:
        with opener.open(url, timeout=PATIENCE) as response:
            response.read()
            status = response.status
    except urllib.error.HTTPError as error:
        with error:
            status = json.load(error)["status"]
    print(json.dumps({"call": name, "status": status}), flush=True)


main()
