/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The same operations on a CPU, with threads as lanes: for tests of the device library and of programs on it.
 *
 * A program may define STRAIT_XPU_HOST_HOOK(what) before it includes strait_xpu.cuh; it is called before each operation
 * on shared memory, and may yield. With STRAIT_XPU_HOST_DELAY, relaxed stores of one thread are kept back for a while and
 * come to memory in any order (those to one address in theirs), as on a device; releases and atomic operations bring
 * them out. Included by strait_xpu.cuh. */
#ifndef STRAIT_XPU_HW_HOST_CUH
#define STRAIT_XPU_HW_HOST_CUH
#include "base.cuh"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#ifndef STRAIT_XPU_HOST_HOOK
#define STRAIT_XPU_HOST_HOOK() ((void)0)
#endif

namespace strait {
namespace xpu {
namespace hw {

/* Threads that meet: a warp or a block. */
class group {
	unsigned members, here = 0;

public:
	explicit group(unsigned members) : members(members), slots(members) {}
	void meet()
	{
		std::unique_lock<std::mutex> held(lock);
		const u64 now = round;
		if (++here == members) {
			here = 0;
			round++;
			changed.notify_all();
		} else {
			changed.wait(held, [&] { return round != now; });
		}
	}
#if defined(__SANITIZE_THREAD__)
	/* Likewise, but orders no memory, as a warp's shuffles and votes: ThreadSanitizer takes nothing from relaxed operations. */
	void meet_bare()
	{
		const u64 now = bare_round.load(bare_order);
		if (bare_here.fetch_add(1, bare_order) + 1 == members) {
			bare_here.store(0, bare_order);
			bare_round.fetch_add(1, bare_order);
		} else {
			while (bare_round.load(bare_order) == now)
				std::this_thread::yield();
		}
	}
	static constexpr std::memory_order bare_order = std::memory_order_relaxed;
	std::vector<std::atomic<u64>> bare = std::vector<std::atomic<u64>>(members);
#endif
	std::vector<u64> slots; /* one a member, for values that are handed round */

private:
	u64 round = 0;
#if defined(__SANITIZE_THREAD__)
	std::atomic<u64> bare_here{0}, bare_round{0};
#endif
	std::mutex lock;
	std::condition_variable changed;
};

struct delayed {
	void *at;
	u64 value;
	unsigned bytes;
	bool fenced; /* it comes right behind a fence */
};

/* What a thread that plays a lane knows of itself. */
struct lane_state {
	unsigned thread = 0, threads = 1, block = 0;
	group *warp = nullptr, *whole = nullptr;
	std::vector<delayed> late;
	unsigned fenced = 0;
	u64 random = 0x9e3779b97f4a7c15ULL;
	u64 next()
	{
		random ^= random << 13;
		random ^= random >> 7;
		return random ^= random << 17;
	}
};

inline lane_state &me()
{
	static thread_local lane_state state;
	return state;
}

inline void bring_out(const delayed &d)
{
	if (d.bytes == 8 && d.fenced)
		__atomic_store_n((u64 *)d.at, d.value, __ATOMIC_RELEASE);
	else if (d.bytes == 8)
		__atomic_store_n((u64 *)d.at, d.value, __ATOMIC_RELAXED);
	else if (d.fenced)
		__atomic_store_n((u32 *)d.at, (u32)d.value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((u32 *)d.at, (u32)d.value, __ATOMIC_RELAXED);
}

/* Bring out stores that were kept back: all, those that touch one place, or one of them. */
inline void bring_out_all()
{
	for (const delayed &d : me().late)
		bring_out(d);
	me().late.clear();
}

inline void bring_out_at(const void *p)
{
	std::vector<delayed> &late = me().late;
	for (size_t i = 0; i < late.size();) {
		if ((uintptr_t)late[i].at / 8 == (uintptr_t)p / 8) {
			bring_out(late[i]);
			late.erase(late.begin() + (long)i);
		} else {
			i++;
		}
	}
}

inline void bring_out_one()
{
	std::vector<delayed> &late = me().late;
	if (!late.empty())
		bring_out_at(late[me().next() % late.size()].at);
}

inline void step()
{
	STRAIT_XPU_HOST_HOOK();
	if (!me().late.empty() && me().next() % 4 == 0)
		bring_out_one();
}

template <class T> inline void store_late(T *p, T v)
{
	step();
	const delayed d = {p, v, sizeof(T), me().fenced != 0};
	me().fenced -= d.fenced;
#ifdef STRAIT_XPU_HOST_DELAY
	if (me().late.size() >= 16)
		bring_out_one();
	bring_out_at(p);
	me().late.push_back(d);
#else
	bring_out(d);
#endif
}

template <class T> inline T load_as(const T *p, int order)
{
	step();
	bring_out_at(p);
	return order == __ATOMIC_ACQUIRE ? __atomic_load_n(p, __ATOMIC_ACQUIRE) : __atomic_load_n(p, __ATOMIC_RELAXED);
}

inline u64 load_relaxed(const u64 *p) { return load_as(p, __ATOMIC_RELAXED); }
inline u32 load_relaxed(const u32 *p) { return load_as(p, __ATOMIC_RELAXED); }
inline u64 load_acquire(const u64 *p) { return load_as(p, __ATOMIC_ACQUIRE); }
inline u32 load_acquire(const u32 *p) { return load_as(p, __ATOMIC_ACQUIRE); }
inline u64 load_relaxed_gpu(const u64 *p) { return load_as(p, __ATOMIC_RELAXED); }
inline u64 load_acquire_gpu(const u64 *p) { return load_as(p, __ATOMIC_ACQUIRE); }
inline void store_relaxed(u64 *p, u64 v) { store_late(p, v); }
inline void store_relaxed(u32 *p, u32 v) { store_late(p, v); }
inline void store_relaxed_gpu(u64 *p, u64 v) { store_late(p, v); }

/* Whatever is ordered by it is there before; the step in between lets others run. */
inline void before_release()
{
	step();
	bring_out_all();
}

inline void store_release(u64 *p, u64 v)
{
	before_release();
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
inline void store_release(u32 *p, u32 v)
{
	before_release();
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
inline void store_release_gpu(u64 *p, u64 v) { store_release(p, v); }

template <class T> inline T *ready(T *p)
{
	step();
	bring_out_at(p);
	return p;
}

inline u64 fetch_add(u64 *p, u64 v) { return __atomic_fetch_add(ready(p), v, __ATOMIC_RELAXED); }
inline u32 fetch_add(u32 *p, u32 v) { return __atomic_fetch_add(ready(p), v, __ATOMIC_RELAXED); }
inline u64 fetch_and(u64 *p, u64 v) { return __atomic_fetch_and(ready(p), v, __ATOMIC_RELAXED); }
inline u64 fetch_or(u64 *p, u64 v) { return __atomic_fetch_or(ready(p), v, __ATOMIC_RELAXED); }
inline u64 fetch_xor(u64 *p, u64 v) { return __atomic_fetch_xor(ready(p), v, __ATOMIC_RELAXED); }
inline u64 exchange(u64 *p, u64 v) { return __atomic_exchange_n(ready(p), v, __ATOMIC_RELAXED); }
inline u32 exchange_acquire(u32 *p, u32 v) { return __atomic_exchange_n(ready(p), v, __ATOMIC_ACQUIRE); }
inline u64 fetch_add_gpu(u64 *p, u64 v) { return fetch_add(p, v); }
inline void add_relaxed(u64 *p, u64 v) { fetch_add(p, v); }
inline void add_release(u64 *p, u64 v)
{
	before_release();
	__atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
inline void add_release(u32 *p, u32 v)
{
	before_release();
	__atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
inline void add_release_gpu(u64 *p, u64 v) { add_release(p, v); }
inline void add_relaxed(u32 *p, u32 v) { fetch_add(p, v); }
inline void max_relaxed(u64 *p, u64 v)
{
	u64 was = __atomic_load_n(ready(p), __ATOMIC_RELAXED);
	while (was < v && !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
	}
}

inline u64 compare_swap(u64 *p, u64 want, u64 v)
{
	__atomic_compare_exchange_n(ready(p), &want, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return want;
}
inline u64 compare_swap_gpu(u64 *p, u64 want, u64 v)
{
	__atomic_compare_exchange_n(ready(p), &want, v, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
	return want;
}

inline u64 compare_swap_relaxed_gpu(u64 *p, u64 want, u64 v) { return compare_swap(p, want, v); }

/* ThreadSanitizer knows no fences: the stores of a command that come behind one are releases. */
inline void fence()
{
	before_release();
	me().fenced = 8;
}

inline std::mutex &whole_lock(const void *p)
{
	static std::mutex locks[64];
	return locks[(uintptr_t)p / 16 % 64];
}

inline void store_whole(pair64 *p, pair64 v)
{
	step();
	bring_out_at(&p->lo);
	bring_out_at(&p->hi);
	std::lock_guard<std::mutex> held(whole_lock(p));
	__atomic_store_n(&p->lo, v.lo, __ATOMIC_RELAXED);
	__atomic_store_n(&p->hi, v.hi, __ATOMIC_RELEASE);
}

inline pair64 load_whole(const pair64 *p)
{
	step();
	std::lock_guard<std::mutex> held(whole_lock(p));
	const u64 hi = __atomic_load_n(&p->hi, __ATOMIC_ACQUIRE);
	return pair64{__atomic_load_n(&p->lo, __ATOMIC_RELAXED), hi};
}

inline void store_line(pair64 *p, pair64 v)
{
	if (me().next() % 2) {
		store_late(&p->lo, v.lo);
		store_late(&p->hi, v.hi);
	} else {
		store_late(&p->hi, v.hi);
		store_late(&p->lo, v.lo);
	}
}

inline pair64 load_line(const pair64 *p)
{
	pair64 v;
	if (me().next() % 2) {
		v.lo = load_relaxed(&p->lo);
		v.hi = load_relaxed(&p->hi);
	} else {
		v.hi = load_relaxed(&p->hi);
		v.lo = load_relaxed(&p->lo);
	}
	return v;
}

/* Payload is no atomic: a program that reads it without being ordered after the put has a race, and is told. */
template <class T> inline void store_payload(T *p, T v)
{
	step();
	std::memcpy((void *)p, &v, sizeof(T));
}
template <class T> inline T load_payload(const T *p)
{
	T v;
	std::memcpy(&v, (const void *)p, sizeof(T));
	return v;
}
template <class T> inline T load_remote(const T *p) { return load_payload(p); }

inline u64 now_ns()
{
	using namespace std::chrono;
	return (u64)duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

inline u32 ticks() { return (u32)now_ns(); }

inline unsigned thread_of_block() { return me().thread; }

template <scope S> inline unsigned rank()
{
	return S == scope::thread ? 0 : S == scope::warp ? me().thread % STRAIT_XPU_WARP : me().thread;
}

template <scope S> inline unsigned size()
{
	return S == scope::thread ? 1 : S == scope::warp ? STRAIT_XPU_WARP : me().threads;
}

template <scope S> inline group *my_group() { return S == scope::warp ? me().warp : me().whole; }

template <scope S> inline void sync()
{
	if (S == scope::thread)
		return;
	bring_out_all();
	my_group<S>()->meet();
}

/* Every member's value to every member. Of a block it is a barrier, too; of a warp it orders
 * nothing, as ThreadSanitizer is to see. */
template <scope S, class F> inline u64 hand_round(u64 v, F pick)
{
	group *g = my_group<S>();
	bring_out_all();
#if defined(__SANITIZE_THREAD__)
	if (S == scope::warp) {
		g->bare[rank<S>()].store(v, group::bare_order);
		g->meet_bare();
		std::vector<u64> all(STRAIT_XPU_WARP);
		for (unsigned i = 0; i < STRAIT_XPU_WARP; i++)
			all[i] = g->bare[i].load(group::bare_order);
		g->meet_bare();
		return pick(all);
	}
#endif
	g->slots[rank<S>()] = v;
	g->meet();
	const u64 out = pick(g->slots);
	g->meet();
	return out;
}

inline u64 shuffle(u64 v, unsigned from)
{
	return hand_round<scope::warp>(v, [&](const std::vector<u64> &s) { return s[from % STRAIT_XPU_WARP]; });
}
inline u64 ballot(bool v)
{
	return hand_round<scope::warp>(v, [](const std::vector<u64> &s) {
		u64 bits = 0;
		for (unsigned i = 0; i < s.size(); i++)
			bits |= (u64)(s[i] != 0) << i;
		return bits;
	});
}
template <scope S> inline bool any(bool v)
{
	return S == scope::thread ? v : hand_round<S>(v, [](const std::vector<u64> &s) {
		u64 some = 0;
		for (u64 one : s)
			some |= one;
		return some;
	}) != 0;
}

template <scope S> inline u64 broadcast(u64 v)
{
	return S == scope::thread ? v : hand_round<S>(v, [](const std::vector<u64> &s) { return s[0]; });
}
inline u32 block_xor(u32 v)
{
	return (u32)hand_round<scope::block>(v, [](const std::vector<u64> &s) {
		u64 x = 0;
		for (u64 one : s)
			x ^= one;
		return x;
	});
}

/* Run `kernel(block)` in blocks of `threads` threads, a multiple of a warp, all at once; returns when all have. */
template <class F> inline void launch(unsigned blocks, unsigned threads, u64 seed, F kernel)
{
	std::vector<std::thread> running;
	std::vector<std::deque<group>> warps(blocks);
	std::deque<group> wholes;
	for (unsigned b = 0; b < blocks; b++) {
		wholes.emplace_back(threads);
		for (unsigned w = 0; w < threads / STRAIT_XPU_WARP; w++)
			warps[b].emplace_back((unsigned)STRAIT_XPU_WARP);
		for (unsigned t = 0; t < threads; t++)
			running.emplace_back([&, b, t] {
				lane_state &s = me();
				s.thread = t;
				s.threads = threads;
				s.block = b;
				s.warp = threads % STRAIT_XPU_WARP ? nullptr : &warps[b][t / STRAIT_XPU_WARP];
				s.whole = &wholes[b];
				s.random = (seed + 1) * 0x9e3779b97f4a7c15ULL + (b * 1024 + t) * 0xd1342543de82ef95ULL;
				kernel(b);
				bring_out_all();
			});
	}
	for (std::thread &t : running)
		t.join();
}

} // namespace hw
} // namespace xpu
} // namespace strait

#endif
