"""Gets one URL with what the environment says of proxies and roots, and nothing else."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
    print(answer.read().decode())
