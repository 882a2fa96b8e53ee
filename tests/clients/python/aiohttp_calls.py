"""aiohttp with what the environment says of proxies and roots: a line of JSON for each call, for the test to judge."""

import asyncio
import json
import sys

import aiohttp

PATIENCE = aiohttp.ClientTimeout(total=60)


async def main():
    async with aiohttp.ClientSession(timeout=PATIENCE, trust_env=True) as session:
        for call in json.loads(sys.argv[1]):
            print(json.dumps(await said(session, call)), flush=True)


async def said(session, call):
    try:
        return {"status": await run(session, **call)}
    except (aiohttp.ClientHttpProxyError, aiohttp.WSServerHandshakeError) as error:
        return {"error": str(error.status)}
    except aiohttp.ClientError as error:
        return {"error": str(error)}


async def run(session, how, url, proxy=None):
    if how == "untold":
        # It reads the environment only where it is told to.
        async with aiohttp.ClientSession(timeout=PATIENCE) as untold:
            return await get(untold, url)
    if how == "post":
        async with session.post(url, data=pieces()) as answer:
            return answer.status
    if how == "together":
        return await asyncio.gather(*(get(session, url) for _ in range(20)))
    if how == "socket":
        return await talk(session, url)
    return await get(session, url, proxy=proxy)


async def get(session, url, **options):
    async with session.get(url, **options) as answer:
        await answer.read()
        return answer.status


async def talk(session, url):
    """The host speaks first, and gives back what it gets."""
    async with session.ws_connect(url) as socket:
        first = await socket.receive_str()
        await socket.send_str("to you")
        return [first, await socket.receive_str()]


async def pieces():
    """Without a length, so that it goes in chunks."""
    for _ in range(25):
        yield bytes(40_000)


asyncio.run(main())
