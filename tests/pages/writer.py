"""A process that owns pages and changes them without a pause, while another process reads what was frozen.

It writes one line of JSON for each freeze: how to open it, and a CRC of each page. A line of input asks for the next
freeze; the end of the input ends the process. Whole pages are changed, and single words, by turns.
"""

import json
import os
import select
import sys
import zlib

import numpy as np

from spe_adapter.pages.manager import PageManager

PAGES = 64
PAGE_BYTES = 16 * 1024
SOME_WORDS = 200


def main() -> None:
    """Change pages until the input ends."""
    chance = np.random.default_rng(int(sys.argv[1]))
    manager = PageManager.create_file(page_bytes=PAGE_BYTES, max_pages=PAGES)
    pages = manager.create(5, PAGES)
    pages.allocate(PAGES)
    words = pages.bytes.view(np.int64).reshape(PAGES, -1)
    frozen = None
    value = 0
    while True:
        if select.select([0], [], [], 0)[0]:
            if not os.read(0, 1):
                return
            if frozen is not None:
                frozen.close()
            frozen = manager.freeze(copies=PAGES)
            told = {
                "handle": frozen.handle,
                "ids": frozen.ids.tolist(),
                "values": [zlib.crc32(page.data) for page in words],
            }
            os.write(1, (json.dumps(told) + "\n").encode())
        numbers = chance.choice(PAGES, 3, replace=False)
        value += 1
        if value % 2:
            pages.touch(numbers)
            words[numbers] = value
        else:
            changed = np.sort(chance.choice(words.size, SOME_WORDS))
            pages.touch_words(changed)
            words.reshape(-1)[changed] = value


if __name__ == "__main__":
    main()
