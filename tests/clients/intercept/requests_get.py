"""Gets one URL with what the environment says of proxies and roots, and nothing else."""

import sys

import requests

answer = requests.get(sys.argv[1], timeout=20)
answer.raise_for_status()
print(answer.text)
