# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""PyTorch's CUDA tensors between two ranks, by their addresses, under an MPI that knows no GPUs."""

import os

import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())


def message(tensor):
    """The tensor's memory as MPI takes it: an address and a number of bytes."""
    return [MPI.memory.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size()), MPI.BYTE]


def exchange(count, dtype, keep):
    expected = (torch.arange(count, dtype=torch.int64) * 7 % 251).to(dtype)
    if rank == 0:
        tensor = expected.cuda()
        torch.cuda.synchronize()
        comm.Send(message(tensor), dest=1, tag=count % 1000)
    else:
        tensor = torch.zeros(count, dtype=dtype, device="cuda")
        torch.cuda.synchronize()
        comm.Recv(message(tensor), source=0, tag=count % 1000)
        assert torch.equal(tensor.cpu(), expected), (count, dtype)
    keep.append(tensor)
    if len(keep) > 3:
        # What PyTorch gets back it hands out again, also in other sizes.
        del keep[0]


keep = []
for round in range(3):
    for count in (1, 3, 1000, 65_537, 1_000_003, 30_000_001):
        for dtype in (torch.uint8, torch.float16, torch.float32):
            exchange(count, dtype, keep)
    keep.clear()
    torch.cuda.empty_cache()
comm.Barrier()
if rank == 0:
    print("torch ok,", torch.__version__, os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
