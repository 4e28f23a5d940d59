/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait_rpipe.so in C++11: pipes and blocks that close and free themselves, and values of plain types. Failures are
 * std::system_error with the words of rerror(). strait_rpipe(7) has the whole story. */
#ifndef STRAIT_RPIPE_HPP
#define STRAIT_RPIPE_HPP

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <system_error>
#include <type_traits>
#include <utility>

#include "strait_rpipe.h"

namespace strait {

/* Throws what the last call of this thread has left. */
[[noreturn]] inline void throw_last()
{
    throw std::system_error(errno, std::generic_category(), rerror());
}

inline void check(int code)
{
    if (code < 0)
        throw_last();
}

/* The job, from the constructor to the destructor. */
class Job {
public:
    explicit Job(const rinit_attr *attr = nullptr) { check(rinit(&rank_, attr)); }
    ~Job() { rfinalize(); }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    int rank() const { return rank_; }
    int count() const { return rcount(); }

private:
    int rank_ = -1;
};

class Pipe;

/* A block: allocated, and freed unless it is written; or read, and freed. */
class Block {
public:
    Block(Block &&other) noexcept : rp_(other.rp_), addr_(other.addr_) { other.addr_ = RADDR_NULL; }
    Block &operator=(Block &&other) noexcept
    {
        std::swap(rp_, other.rp_);
        std::swap(addr_, other.addr_);
        return *this;
    }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    ~Block()
    {
        if (addr_ != RADDR_NULL)
            rfree(addr_);
    }
    void *data() const
    {
        void *memory = rmem(rp_, addr_);
        if (memory == nullptr)
            throw_last();
        return memory;
    }
    size_t size() const
    {
        ptrdiff_t size = rlength(addr_);
        if (size < 0)
            throw_last();
        return static_cast<size_t>(size);
    }

private:
    friend class Pipe;
    Block(rpipe_t rp, raddr_t addr) : rp_(rp), addr_(addr) {}
    rpipe_t rp_;
    raddr_t addr_;
};

/* An end of a pipe. */
class Pipe {
public:
    Pipe(int peer, bool iswriter, size_t width, unsigned flags = HD_PIPE)
    {
        check(rpipe_open(&rp_, peer, iswriter, width, flags));
    }
    Pipe(int peer, const rpipe_attr &attr) { check(rpipe_open_attr(&rp_, peer, &attr)); }
    Pipe(Pipe &&other) noexcept : rp_(other.rp_) { other.rp_ = nullptr; }
    Pipe(const Pipe &) = delete;
    Pipe &operator=(const Pipe &) = delete;
    ~Pipe()
    {
        if (rp_ != nullptr)
            rpipe_close(rp_);
    }
    rpipe_t get() const { return rp_; }

    Block allocate(size_t size, size_t align = 1)
    {
        raddr_t addr = rmalloc_aligned(rp_, size, align);
        if (addr == RADDR_NULL)
            throw_last();
        return Block(rp_, addr);
    }
    /* The block is the reader's from now on. */
    void write(Block block)
    {
        check(rwrite(rp_, block.addr_));
        block.addr_ = RADDR_NULL;
    }
    Block read(size_t size = SIZE_MAX)
    {
        raddr_t addr = RADDR_NULL;
        check(rread_into(rp_, &addr, size));
        return Block(rp_, addr);
    }

    template <class T> void put(const T &value)
    {
        static_assert(std::is_trivially_copyable<T>::value, "a value is sent as its bytes");
        Block block = allocate(sizeof(T), alignof(T));
        std::memcpy(block.data(), &value, sizeof(T));
        write(std::move(block));
    }
    template <class T> T take()
    {
        static_assert(std::is_trivially_copyable<T>::value, "a value is sent as its bytes");
        Block block = read(sizeof(T));
        T value;
        if (block.size() != sizeof(T))
            throw std::system_error(EMSGSIZE, std::generic_category(), "the message is shorter than the type");
        std::memcpy(&value, block.data(), sizeof(T));
        return value;
    }
    rpipe_stats stats() const
    {
        rpipe_stats stats;
        stats.size = sizeof(stats);
        check(rpipe_get_stats(rp_, &stats));
        return stats;
    }

private:
    rpipe_t rp_ = nullptr;
};

/* Memory that this process lends, from the constructor to the destructor. */
class Lent {
public:
    Lent(int borrower, size_t size, int64_t nanoseconds = RPIPE_FOREVER)
    {
        check(rlend(&lent_, borrower, size, nanoseconds));
    }
    /* To several, the first of which keeps the book. */
    Lent(std::initializer_list<int> borrowers, size_t size, int64_t nanoseconds = RPIPE_FOREVER)
    {
        check(rlend_many(&lent_, borrowers.begin(), borrowers.size(), size, nanoseconds));
    }
    Lent(Lent &&other) noexcept : lent_(other.lent_) { other.lent_ = nullptr; }
    Lent(const Lent &) = delete;
    Lent &operator=(const Lent &) = delete;
    ~Lent()
    {
        if (lent_ != nullptr)
            rlend_close(lent_);
    }
    /* Waits until it is given back. */
    void wait(int64_t nanoseconds = RPIPE_FOREVER) { check(rlend_wait(lent_, nanoseconds)); }

private:
    rlent_t lent_ = nullptr;
};

/* Memory of another process, with a heap in it. Blocks are freed by free, or with all by the destructor. */
class Borrowed {
public:
    explicit Borrowed(int lender, unsigned policy = 0, int64_t nanoseconds = RPIPE_FOREVER)
    {
        check(rborrow(&borrowed_, lender, policy, nanoseconds));
    }
    Borrowed(Borrowed &&other) noexcept : borrowed_(other.borrowed_) { other.borrowed_ = nullptr; }
    Borrowed(const Borrowed &) = delete;
    Borrowed &operator=(const Borrowed &) = delete;
    ~Borrowed()
    {
        if (borrowed_ != nullptr)
            rborrow_close(borrowed_);
    }
    rborrowed_t get() const { return borrowed_; }

    rborrow_addr_t allocate(size_t size, size_t align = 1)
    {
        rborrow_addr_t addr = rborrow_malloc_aligned(borrowed_, size, align);
        if (addr == RADDR_NULL)
            throw_last();
        return addr;
    }
    void free(rborrow_addr_t addr) { check(rborrow_free(borrowed_, addr)); }
    /* A block that the first of several borrowers has allocated. */
    void attach(rborrow_addr_t addr, size_t size) { check(rborrow_attach(borrowed_, addr, size)); }
    void detach(rborrow_addr_t addr) { check(rborrow_detach(borrowed_, addr)); }
    void write(rborrow_addr_t addr, size_t offset, const void *from, size_t size)
    {
        check(rborrow_write(borrowed_, addr, offset, from, size, RPIPE_FOREVER));
    }
    void read(rborrow_addr_t addr, size_t offset, void *to, size_t size) const
    {
        check(rborrow_read(borrowed_, addr, offset, to, size, RPIPE_FOREVER));
    }

    template <class T> void store(rborrow_addr_t addr, const T &value, size_t offset = 0)
    {
        static_assert(std::is_trivially_copyable<T>::value, "a value is stored as its bytes");
        write(addr, offset, &value, sizeof(T));
    }
    template <class T> T load(rborrow_addr_t addr, size_t offset = 0) const
    {
        static_assert(std::is_trivially_copyable<T>::value, "a value is stored as its bytes");
        T value;
        read(addr, offset, &value, sizeof(T));
        return value;
    }

    /* Atomic operations on an integer of 4 or 8 bytes in a block; what it was. */
    template <class T> T fetch_add(rborrow_addr_t addr, T operand, size_t offset = 0)
    {
        return atomic<T>(addr, offset, RPIPE_SUM, operand);
    }
    template <class T> T fetch_and(rborrow_addr_t addr, T operand, size_t offset = 0)
    {
        return atomic<T>(addr, offset, RPIPE_AND, operand);
    }
    template <class T> T fetch_or(rborrow_addr_t addr, T operand, size_t offset = 0)
    {
        return atomic<T>(addr, offset, RPIPE_OR, operand);
    }
    template <class T> T fetch_xor(rborrow_addr_t addr, T operand, size_t offset = 0)
    {
        return atomic<T>(addr, offset, RPIPE_XOR, operand);
    }
    template <class T> T exchange(rborrow_addr_t addr, T operand, size_t offset = 0)
    {
        return atomic<T>(addr, offset, RPIPE_SWAP, operand);
    }
    /* Whether it was `expected`, and is `desired` now; else `expected` becomes what it is. */
    template <class T> bool compare_exchange(rborrow_addr_t addr, T &expected, T desired, size_t offset = 0)
    {
        T was = atomic<T>(addr, offset, RPIPE_COMPARE_SWAP, desired, expected);
        bool same = was == expected;
        expected = was;
        return same;
    }
    rborrow_stats stats() const
    {
        rborrow_stats stats;
        stats.size = sizeof(stats);
        check(rborrow_get_stats(borrowed_, &stats));
        return stats;
    }

private:
    template <class T>
    T atomic(rborrow_addr_t addr, size_t offset, unsigned operation, T operand, T compare = T())
    {
        static_assert(std::is_integral<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "an integer of 4 or 8 bytes");
        uint64_t old = 0;
        unsigned what = operation | (sizeof(T) == 8 ? RPIPE_UINT64 : RPIPE_UINT32);
        check(rborrow_atomic(borrowed_, addr, offset, what, static_cast<uint64_t>(operand), static_cast<uint64_t>(compare), &old, RPIPE_FOREVER));
        return static_cast<T>(old);
    }

    rborrowed_t borrowed_ = nullptr;
};

} // namespace strait

#endif /* STRAIT_RPIPE_HPP */
