# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What programs of mpi4py and CuPy do: an average over ranks, a halo of a grid, an exchange of blocks, windows, objects
beside arrays. Results are compared with those of NumPy."""

import cupy
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()


def average():
    """Gradients of a model: each parameter summed by all, in place."""
    for n in (1, 1000, 65537):
        for kind in ("f", "d", "i"):
            a = cupy.asarray(numpy.arange(n, dtype=kind) * (rank + 1))
            world.Allreduce(MPI.IN_PLACE, a)
            assert cupy.allclose(a, numpy.arange(n, dtype=kind) * (size * (size + 1) // 2)), (n, kind)


def heat():
    """A rod of which each rank has a part with two halo cells: as it would be on one rank."""
    cells, steps = 50, 30
    whole = numpy.zeros(cells * size + 2)
    whole[cells * size // 2] = 100.0
    mine = cupy.asarray(whole[rank * cells : rank * cells + cells + 2])
    left, right = (rank - 1 if rank else MPI.PROC_NULL), (rank + 1 if rank + 1 < size else MPI.PROC_NULL)
    for _ in range(steps):
        world.Sendrecv(mine[1:2], left, 1, mine[cells + 1 : cells + 2], right, 1)
        world.Sendrecv(mine[cells : cells + 1], right, 2, mine[0:1], left, 2)
        host = mine.get()
        host[1:-1] += 0.25 * (host[:-2] - 2 * host[1:-1] + host[2:])
        mine.set(host)
        whole[1:-1] += 0.25 * (whole[:-2] - 2 * whole[1:-1] + whole[2:])
    assert numpy.array_equal(mine.get()[1:-1], whole[rank * cells + 1 : rank * cells + cells + 1])


def transpose():
    """A matrix by columns: a derived datatype sends them, and blocks are exchanged."""
    n = 8
    a = cupy.asarray(numpy.arange(n * n * size, dtype="i") + 1000 * rank)
    column = MPI.INT.Create_vector(n, 1, n * size).Create_resized(0, 4).Commit()
    b = cupy.zeros(n * n * size, dtype="i")
    world.Alltoall([a, n, column], [b, n * n, MPI.INT])
    for source in range(size):
        block = (numpy.arange(n * n * size) + 1000 * source).reshape(n, n * size)[:, rank * n : rank * n + n]
        assert numpy.array_equal(b.get()[source * n * n : (source + 1) * n * n], block.T.ravel())
    column.Free()


def gathered():
    """Other lengths for each rank, to one and to all; lower-case calls of Python objects beside them."""
    counts = [3 * r + 1 for r in range(size)]
    a = cupy.asarray(numpy.full(counts[rank], rank, dtype="d"))
    everything = numpy.concatenate([numpy.full(c, r, dtype="d") for r, c in enumerate(counts)])
    b = cupy.zeros(sum(counts))
    world.Allgatherv(a, [b, counts])
    assert cupy.allclose(b, everything)
    b.fill(-1)
    world.Gatherv(a, [b, counts], root=size - 1)
    assert cupy.allclose(b, everything if rank == size - 1 else numpy.full(sum(counts), -1.0))
    assert world.allgather(rank) == list(range(size))


def requests():
    """A ring of nonblocking calls, and persistent ones."""
    a, b = cupy.arange(5000, dtype="d") * (rank + 1), cupy.zeros(5000)
    to, source = (rank + 1) % size, (rank - 1) % size
    MPI.Request.Waitall([world.Irecv(b, source), world.Isend(a, to)])
    assert cupy.allclose(b, numpy.arange(5000) * (source + 1.0))
    again = [world.Recv_init(b, source), world.Send_init(a, to)]
    for turn in range(5):
        a.fill(turn + 100 * rank)
        MPI.Prequest.Startall(again)
        MPI.Request.Waitall(again)
        assert cupy.allclose(b, numpy.full(5000, turn + 100.0 * source))
    for request in again:
        request.Free()


def windows():
    """Each rank puts into its neighbour's window."""
    a, b = cupy.arange(100, dtype="i"), cupy.zeros(100, dtype="i")
    try:
        window = MPI.Win.Create(b, 4, comm=world)
    except MPI.Exception as error:
        assert len(str(error)) > 10
        return
    window.Fence()
    window.Put(a, (rank + 1) % size)
    window.Fence()
    assert cupy.allclose(b, numpy.arange(100))
    # Only then may the neighbour write again.
    window.Fence()
    window.Accumulate(a, (rank + 1) % size, op=MPI.SUM)
    window.Fence()
    assert cupy.allclose(b, 2 * numpy.arange(100))
    window.Free()


for shape in (average, heat, transpose, gathered, requests, windows):
    shape()
    world.Barrier()
if rank == 0:
    print("right shapes")
