/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The classes of strait_rpipe.hpp: values there and back, a block that is not written, and what is wrong. */
#undef NDEBUG
#include <cassert>
#include <cstdio>
#include <strait_rpipe.hpp>

struct Point {
    double x, y;
    int tag;
};

int main()
{
    strait::Job job;
    assert(job.count() == 2);
    strait::Pipe pipe(1 - job.rank(), false, 1024, FD_PIPE);
    for (int i = 0; i < 1000; i++) {
        pipe.put(Point{1.5 * i, -1.0 * job.rank(), i});
        Point other = pipe.take<Point>();
        assert(other.x == 1.5 * i && other.y == job.rank() - 1.0 && other.tag == i);
    }
    {
        strait::Block block = pipe.allocate(1000, 64);
        assert(block.size() == 1000 && reinterpret_cast<uintptr_t>(block.data()) % 64 == 0);
        std::memset(block.data(), 7, 1000);
        strait::Block other = pipe.allocate(1);
        other = std::move(block);
        pipe.write(std::move(other));
    }
    assert(static_cast<char *>(pipe.read().data())[999] == 7);
    /* Blocks that were not written are free again, and those that were read are the peer's. */
    pipe.put(job.rank());
    assert(pipe.take<int>() == 1 - job.rank());
    try {
        pipe.allocate(1025);
        assert(!"wider than the pipe");
    } catch (const std::system_error &e) {
        assert(e.code().value() == EMSGSIZE && std::strstr(e.what(), "wide") != nullptr);
    }
    assert(pipe.stats().read == 1002);
    std::printf("rank %d: ok\n", job.rank());
}
