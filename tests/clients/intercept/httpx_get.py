"""Gets one URL in HTTP/2 with what the environment says of proxies and roots, and nothing else."""

import sys

import httpx

with httpx.Client(http2=True, timeout=20) as client:
    answer = client.get(sys.argv[1])
    answer.raise_for_status()
    assert answer.http_version == "HTTP/2", answer.http_version
    print(answer.text)
