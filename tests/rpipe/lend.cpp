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
        strait::Lent shared({0}, 4096);
        shared.wait();
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
        {
            strait::Borrowed given_back(std::move(moved));
        }
        strait::Borrowed shared(1);
        rborrow_addr_t words = shared.allocate(64);
        shared.attach(words, 64);
        shared.store<int64_t>(words, -5);
        assert(shared.fetch_add<int64_t>(words, -1) == -5 && shared.load<int64_t>(words) == -6);
        shared.store<int32_t>(words, -5, 8);
        assert(shared.fetch_add<int32_t>(words, 2, 8) == -5 && shared.exchange<int32_t>(words, 7, 8) == -3);
        assert(shared.fetch_and<uint32_t>(words, 6, 8) == 7 && shared.fetch_or<uint32_t>(words, 8, 8) == 6);
        assert(shared.fetch_xor<uint32_t>(words, 1, 8) == 14);
        int expected = 3;
        assert(!shared.compare_exchange(words, expected, 4, 8) && expected == 15);
        assert(shared.compare_exchange(words, expected, 4, 8) && shared.load<int>(words, 8) == 4);
        assert(shared.stats().keeper == 0 && shared.stats().atomics == 8);
        shared.detach(words);
    }
    std::printf("rank %d: ok\n", job.rank());
}
