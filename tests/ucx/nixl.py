# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Two processes with a NIXL agent each; one writes to the other's memory, which checks every byte.

    nixl.py [bytes] [rounds]      default: 4194304 200

Prints "ok nixl" and the median and the best time of a write.
"""
import multiprocessing as mp
import os
import statistics
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 4 << 20
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
LIMIT = 60


def pattern(seed):
    return ((np.arange(SIZE, dtype=np.uint32) * 31 + seed) % 251).astype(np.uint8)


def agent(name, memory):
    # NIXL's own thread makes the target's progress, as it does in a server.
    made = nixl_agent(name, nixl_agent_config(enable_prog_thread=True, backends=["UCX"]))
    part = [(memory.ctypes.data, memory.nbytes, 0, "")]
    made.register_memory(part, mem_type="DRAM")
    return made, made.get_xfer_descs([p[:3] for p in part], mem_type="DRAM")


def target(pipe):
    memory = np.zeros(SIZE, dtype=np.uint8)
    made, parts = agent("target", memory)
    pipe.send((made.get_agent_metadata(), made.get_serialized_descs(parts)))
    while (seed := pipe.recv()) is not None:
        pipe.send(bool(np.array_equal(memory, pattern(seed))))


def write(made, handle):
    begin, state = time.perf_counter(), made.transfer(handle)
    while state == "PROC":
        state = made.check_xfer_state(handle)
        if time.perf_counter() - begin > LIMIT:
            sys.exit("nixl: a write does not end")
    if state != "DONE":
        sys.exit(f"nixl: a write ended with {state}")
    return time.perf_counter() - begin


def main():
    mp.set_start_method("spawn")
    pipe, theirs = mp.Pipe()
    other = mp.Process(target=target, args=(theirs,), daemon=True)
    other.start()
    memory = np.zeros(SIZE, dtype=np.uint8)
    made, parts = agent("initiator", memory)
    if not pipe.poll(LIMIT):
        sys.exit("nixl: the target does not come")
    metadata, descs = pipe.recv()
    name = made.add_remote_agent(metadata)
    handle = made.initialize_xfer("WRITE", parts, made.deserialize_descs(descs), name)
    times = []
    for seed in range(ROUNDS):
        if check := seed % 50 == 0 or seed == ROUNDS - 1:
            memory[:] = pattern(seed)
        times.append(write(made, handle))
        if check:
            pipe.send(seed)
            if not pipe.poll(LIMIT) or not pipe.recv():
                sys.exit(f"nixl: other bytes came than were sent (round {seed})")
    made.release_xfer_handle(handle)
    pipe.send(None)
    other.join(LIMIT)
    median, best = statistics.median(times) * 1e6, min(times) * 1e6
    print(f"ok nixl: {SIZE} bytes, median {median:.0f} us, best {best:.0f} us", flush=True)
    # Taking its agents down at the interpreter's end was seen to crash, Strait or no Strait.
    os._exit(0)


if __name__ == "__main__":
    main()
