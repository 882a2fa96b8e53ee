"""httpx with what the environment says of proxies and roots: a line of JSON for each call, for the test to judge."""

import asyncio
import json
import sys

import httpx

PATIENCE = 60


def main():
    with httpx.Client(timeout=PATIENCE, follow_redirects=True) as client:
        for call in json.loads(sys.argv[1]):
            print(json.dumps(said(client, call)), flush=True)


def said(client, call):
    try:
        return {"status": run(client, **call)}
    except httpx.HTTPError as error:
        return {"error": str(error)}


def run(client, how, url, proxy=None):
    if proxy is not None:
        return httpx.get(url, proxies=proxy, timeout=PATIENCE).status_code
    if how == "post":
        return client.post(url, content=pieces()).status_code
    if how == "together":
        return asyncio.run(together(url))
    return client.get(url).status_code


async def together(url):
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        answers = await asyncio.gather(*(client.get(url) for _ in range(20)))
        return [answer.status_code for answer in answers]


def pieces():
    """Without a length, so that it goes in chunks."""
    for _ in range(25):
        yield bytes(40_000)


main()
