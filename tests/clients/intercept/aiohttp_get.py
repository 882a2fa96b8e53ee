"""Gets one URL with what the environment says of proxies and roots, and nothing else."""

import asyncio
import sys

import aiohttp


async def main(url):
    async with aiohttp.ClientSession(trust_env=True, raise_for_status=True) as session:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=20)) as answer:
            print(await answer.text())


asyncio.run(main(sys.argv[1]))
