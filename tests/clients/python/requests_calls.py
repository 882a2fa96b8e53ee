"""requests with what the environment says of proxies and roots: a line of JSON for each call, for the test to judge."""

import concurrent.futures
import json
import sys

import requests

PATIENCE = 60


def main():
    with requests.Session() as session:
        for call in json.loads(sys.argv[1]):
            print(json.dumps(said(session, call)), flush=True)


def said(session, call):
    try:
        return {"status": run(session, **call)}
    except requests.RequestException as error:
        return {"error": str(error)}


def run(session, how, url, proxy=None):
    if proxy is not None:
        answer = requests.get(url, proxies={"http": proxy, "https": proxy}, timeout=PATIENCE)
        return answer.status_code
    if how == "post":
        return session.post(url, data=pieces(), timeout=PATIENCE).status_code
    get = lambda _: session.get(url, timeout=PATIENCE).status_code
    if how == "together":
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            return list(threads.map(get, range(20)))
    return get(0)


def pieces():
    """Without a length, so that it goes in chunks."""
    for _ in range(25):
        yield bytes(40_000)


main()
