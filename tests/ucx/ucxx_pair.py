# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Two processes with UCXX's asynchronous interface, connected by the address of a socket: arrays there and back.

Prints "ok ucxx" and its version.
"""
import asyncio
import multiprocessing as mp
import sys

import numpy as np
import ucxx

SIZES = (8, 4096, 1 << 20, 4 << 20)
LIMIT = 60


async def serve(ports):
    ended = asyncio.Event()

    async def handle(endpoint):
        for size in SIZES:
            array = np.empty(size, dtype=np.uint8)
            await endpoint.recv(array)
            await endpoint.send(array)
        await endpoint.close()
        ended.set()

    listener = ucxx.create_listener(handle)
    ports.put(listener.port)
    await asyncio.wait_for(ended.wait(), LIMIT)
    listener.close()


async def call(port):
    endpoint = await ucxx.create_endpoint("127.0.0.1", port)
    for size in SIZES:
        sent = (np.arange(size) * 31 % 251).astype(np.uint8)
        back = np.zeros_like(sent)
        await endpoint.send(sent)
        await endpoint.recv(back)
        if not np.array_equal(sent, back):
            sys.exit(f"ucxx: other bytes came back than were sent ({size})")
    await endpoint.close()


def server(ports):
    asyncio.run(serve(ports))


def main():
    context = mp.get_context("spawn")
    ports = context.Queue()
    process = context.Process(target=server, args=(ports,))
    process.start()
    asyncio.run(asyncio.wait_for(call(ports.get(timeout=LIMIT)), LIMIT))
    process.join(LIMIT)
    if process.exitcode != 0:
        sys.exit(f"ucxx: the server ended with {process.exitcode}")
    print("ok ucxx", ucxx.__version__, flush=True)


if __name__ == "__main__":
    main()
