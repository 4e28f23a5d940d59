/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The classes of strait_rpipe.hpp for memory that is lent. */
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
    if (job.rank() == 1) {
        strait::Lent lent(0, 1 << 16);
        strait::Lent moved(std::move(lent));
        moved.wait();
    } else {
        strait::Borrowed memory(1, RPIPE_WORST_FIT);
        strait::Borrowed moved(std::move(memory));
        rborrow_addr_t points = moved.allocate(100 * sizeof(Point), alignof(Point));
        for (int i = 0; i < 100; i++)
            moved.store(points, Point{1.5 * i, -1.0, i}, i * sizeof(Point));
        Point last = moved.load<Point>(points, 99 * sizeof(Point));
        assert(last.x == 1.5 * 99 && last.y == -1.0 && last.tag == 99);
        assert(moved.stats().writes == 100 && moved.stats().heap == 1 << 16);
        moved.free(points);
        try {
            moved.load<int>(points);
            assert(!"it was freed");
        } catch (const std::system_error &e) {
            assert(e.code().value() == ESTALE);
        }
    }
    std::printf("rank %d: ok\n", job.rank());
}
