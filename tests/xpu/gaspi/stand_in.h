/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The calls of GASPI (specification 17.1) that gaspi/host.cc and strait_gaspi_host.hpp make, between processes of one host: a
 * stand-in for a GASPI, with its worst allowed habits. Nothing that was posted happens before gaspi_wait has been asked
 * twice, posting times out now and then, queues are short, and a rank that has died is noticed late. */
#ifndef STRAIT_TEST_GASPI_STAND_IN_H
#define STRAIT_TEST_GASPI_STAND_IN_H

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

typedef unsigned char gaspi_segment_id_t, gaspi_queue_id_t, gaspi_group_t;
typedef unsigned short gaspi_rank_t;
typedef unsigned long gaspi_offset_t, gaspi_size_t, gaspi_timeout_t, gaspi_atomic_value_t;
typedef unsigned int gaspi_notification_id_t, gaspi_notification_t, gaspi_number_t;
typedef void *gaspi_pointer_t;
enum gaspi_return_t { GASPI_ERROR = -1, GASPI_SUCCESS = 0, GASPI_TIMEOUT = 1, GASPI_QUEUE_FULL = 7 };
enum gaspi_state_t { GASPI_STATE_HEALTHY = 0, GASPI_STATE_CORRUPT = 1 };
enum gaspi_alloc_t { GASPI_MEM_UNINITIALIZED = 0, GASPI_MEM_INITIALIZED = 1 };
static const gaspi_timeout_t GASPI_BLOCK = ~0UL, GASPI_TEST = 0;
static const gaspi_group_t GASPI_GROUP_ALL = 0;

namespace stand_in {

enum : unsigned { ranks_most = 4, segments = 2, notes = 128, depth = 16, queues = 6 };
enum : uint64_t { segment_bytes = 8u << 20 };

struct file {
	uint32_t came[64], pid[ranks_most];
	uint64_t length[ranks_most][segments];
	uint32_t note[ranks_most][segments][notes];
	alignas(4096) char data[ranks_most][segments][segment_bytes];
};

struct process {
	file *f = nullptr;
	unsigned rank = 0, ranks = 0, barriers = 0, calls = 0, waits[queues] = {};
	std::vector<char> own[256]; /* of gaspi_segment_alloc: this process's alone */
	std::vector<std::function<bool()>> posted[queues];
	bool noticed = false, corrupt[ranks_most] = {};
	std::mutex lock;
};
inline process &me()
{
	static process p;
	return p;
}

inline bool is_dead(unsigned rank) { return kill((pid_t)me().f->pid[rank], 0) != 0; }

inline char *local(unsigned segment, uint64_t offset, uint64_t n)
{
	process &p = me();
	if (!p.own[segment].empty())
		return offset + n <= p.own[segment].size() ? p.own[segment].data() + offset : nullptr;
	return segment < segments && offset + n <= p.f->length[p.rank][segment] ? p.f->data[p.rank][segment] + offset : nullptr;
}

inline char *remote(unsigned rank, unsigned segment, uint64_t offset, uint64_t n)
{
	process &p = me();
	if (rank == p.rank && segment >= segments)
		return local(segment, offset, n);
	return rank < p.ranks && segment < segments && offset + n <= p.f->length[rank][segment] ? p.f->data[rank][segment] + offset : nullptr;
}

/* As a device that has the operation in a queue. */
inline gaspi_return_t post(unsigned queue, unsigned rank, std::function<bool()> what)
{
	process &p = me();
	if (p.posted[queue].size() >= depth)
		return GASPI_QUEUE_FULL;
	if (++p.calls % 7 == 0)
		return GASPI_TIMEOUT;
	/* First gaspi_wait notices it, then all that posts. */
	if (p.noticed && is_dead(rank)) {
		p.corrupt[rank] = true;
		return GASPI_ERROR;
	}
	p.posted[queue].push_back([rank, what] { return !is_dead(rank) && what(); });
	return GASPI_SUCCESS;
}

} // namespace stand_in

inline gaspi_return_t gaspi_proc_init(gaspi_timeout_t)
{
	auto &p = stand_in::me();
	p.rank = (unsigned)atoi(getenv("GASPI_RANK"));
	p.ranks = (unsigned)atoi(getenv("GASPI_NRANKS"));
	const int fd = open(getenv("GASPI_MFILE"), O_RDWR);
	if (fd < 0 || ftruncate(fd, sizeof(stand_in::file)))
		return GASPI_ERROR;
	p.f = (stand_in::file *)mmap(nullptr, sizeof(stand_in::file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	p.f->pid[p.rank] = (uint32_t)getpid();
	return p.f == MAP_FAILED ? GASPI_ERROR : GASPI_SUCCESS;
}
inline gaspi_return_t gaspi_proc_term(gaspi_timeout_t) { return GASPI_SUCCESS; }
inline gaspi_return_t gaspi_proc_rank(gaspi_rank_t *r) { return *r = (gaspi_rank_t)stand_in::me().rank, GASPI_SUCCESS; }
inline gaspi_return_t gaspi_proc_num(gaspi_rank_t *n) { return *n = (gaspi_rank_t)stand_in::me().ranks, GASPI_SUCCESS; }
inline gaspi_return_t gaspi_barrier(gaspi_group_t, gaspi_timeout_t)
{
	auto &p = stand_in::me();
	uint32_t *came = &p.f->came[p.barriers++];
	__atomic_fetch_add(came, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(came, __ATOMIC_ACQUIRE) < p.ranks)
		std::this_thread::sleep_for(std::chrono::microseconds(50));
	return GASPI_SUCCESS;
}
/* The memory is that of the file; see memory_of in gaspi/host.cc. */
inline gaspi_return_t gaspi_segment_use(gaspi_segment_id_t s, gaspi_pointer_t at, gaspi_size_t n, gaspi_group_t, gaspi_timeout_t, int)
{
	auto &p = stand_in::me();
	if (s >= stand_in::segments || n > stand_in::segment_bytes || at != p.f->data[p.rank][s])
		return GASPI_ERROR;
	p.f->length[p.rank][s] = n;
	return gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK);
}
inline gaspi_return_t gaspi_segment_alloc(gaspi_segment_id_t s, gaspi_size_t n, gaspi_alloc_t)
{
	auto &own = stand_in::me().own[s];
	if (s < stand_in::segments || !own.empty())
		return GASPI_ERROR;
	return own.resize(n), GASPI_SUCCESS;
}
inline gaspi_return_t gaspi_segment_ptr(gaspi_segment_id_t s, gaspi_pointer_t *at)
{
	return *at = stand_in::local(s, 0, 0), *at ? GASPI_SUCCESS : GASPI_ERROR;
}
inline gaspi_return_t gaspi_segment_delete(gaspi_segment_id_t s) { return stand_in::me().own[s].clear(), GASPI_SUCCESS; }

inline gaspi_return_t gaspi_write(gaspi_segment_id_t s, gaspi_offset_t o, gaspi_rank_t k, gaspi_segment_id_t r, gaspi_offset_t p, gaspi_size_t n, gaspi_queue_id_t q, gaspi_timeout_t)
{
	std::lock_guard<std::mutex> held(stand_in::me().lock);
	const char *from = stand_in::local(s, o, n);
	char *to = stand_in::remote(k, r, p, n);
	if (!from || !to)
		return GASPI_ERROR;
	return stand_in::post(q, k, [=] { return memcpy(to, from, n), true; });
}
inline gaspi_return_t gaspi_read(gaspi_segment_id_t s, gaspi_offset_t o, gaspi_rank_t k, gaspi_segment_id_t r, gaspi_offset_t p, gaspi_size_t n, gaspi_queue_id_t q, gaspi_timeout_t)
{
	std::lock_guard<std::mutex> held(stand_in::me().lock);
	char *to = stand_in::local(s, o, n);
	const char *from = stand_in::remote(k, r, p, n);
	if (!from || !to)
		return GASPI_ERROR;
	return stand_in::post(q, k, [=] { return memcpy(to, from, n), true; });
}
inline gaspi_return_t gaspi_notify(gaspi_segment_id_t r, gaspi_rank_t k, gaspi_notification_id_t i, gaspi_notification_t v, gaspi_queue_id_t q, gaspi_timeout_t)
{
	std::lock_guard<std::mutex> held(stand_in::me().lock);
	if (i >= stand_in::notes || !v || !stand_in::remote(k, r, 0, 0))
		return GASPI_ERROR;
	uint32_t *note = &stand_in::me().f->note[k][r][i];
	return stand_in::post(q, k, [=] { return __atomic_store_n(note, v, __ATOMIC_RELEASE), true; });
}
inline gaspi_return_t gaspi_write_notify(gaspi_segment_id_t s, gaspi_offset_t o, gaspi_rank_t k, gaspi_segment_id_t r, gaspi_offset_t p, gaspi_size_t n, gaspi_notification_id_t i,
					 gaspi_notification_t v, gaspi_queue_id_t q, gaspi_timeout_t)
{
	std::lock_guard<std::mutex> held(stand_in::me().lock);
	const char *from = stand_in::local(s, o, n);
	char *to = stand_in::remote(k, r, p, n);
	if (!from || !to || i >= stand_in::notes || !v)
		return GASPI_ERROR;
	uint32_t *note = &stand_in::me().f->note[k][r][i];
	return stand_in::post(q, k, [=] { return memcpy(to, from, n), __atomic_store_n(note, v, __ATOMIC_RELEASE), true; });
}
inline gaspi_return_t gaspi_wait(gaspi_queue_id_t q, gaspi_timeout_t ms)
{
	auto &p = stand_in::me();
	std::lock_guard<std::mutex> held(p.lock);
	if (p.posted[q].empty())
		return GASPI_SUCCESS;
	if (ms == GASPI_TEST && ++p.waits[q] % 3)
		return GASPI_TIMEOUT;
	bool good = true;
	for (const auto &what : p.posted[q])
		good &= what();
	p.posted[q].clear();
	p.noticed |= !good;
	return good ? GASPI_SUCCESS : GASPI_ERROR;
}
inline gaspi_return_t gaspi_notify_waitsome(gaspi_segment_id_t s, gaspi_notification_id_t f, gaspi_number_t n, gaspi_notification_id_t *id, gaspi_timeout_t ms)
{
	auto &p = stand_in::me();
	const auto begin = std::chrono::steady_clock::now();
	for (;;) {
		for (unsigned i = f; i < f + n && i < stand_in::notes; i++)
			if (__atomic_load_n(&p.f->note[p.rank][s][i], __ATOMIC_ACQUIRE))
				return *id = i, GASPI_SUCCESS;
		if (ms == GASPI_TEST || (ms != GASPI_BLOCK && std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(ms)))
			return GASPI_TIMEOUT;
		std::this_thread::yield();
	}
}
inline gaspi_return_t gaspi_notify_reset(gaspi_segment_id_t s, gaspi_notification_id_t i, gaspi_notification_t *old)
{
	auto &p = stand_in::me();
	return *old = __atomic_exchange_n(&p.f->note[p.rank][s][i], 0, __ATOMIC_ACQ_REL), GASPI_SUCCESS;
}
inline gaspi_return_t gaspi_atomic_fetch_add(gaspi_segment_id_t s, gaspi_offset_t o, gaspi_rank_t k, gaspi_atomic_value_t v, gaspi_atomic_value_t *old, gaspi_timeout_t)
{
	auto *at = (uint64_t *)stand_in::remote(k, s, o, 8);
	return at && !stand_in::is_dead(k) ? (*old = __atomic_fetch_add(at, v, __ATOMIC_ACQ_REL), GASPI_SUCCESS) : GASPI_ERROR;
}
inline gaspi_return_t gaspi_atomic_compare_swap(gaspi_segment_id_t s, gaspi_offset_t o, gaspi_rank_t k, gaspi_atomic_value_t c, gaspi_atomic_value_t v, gaspi_atomic_value_t *old, gaspi_timeout_t)
{
	auto *at = (uint64_t *)stand_in::remote(k, s, o, 8);
	if (!at || stand_in::is_dead(k))
		return GASPI_ERROR;
	uint64_t was = c;
	__atomic_compare_exchange_n(at, &was, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return *old = was, GASPI_SUCCESS;
}
inline gaspi_return_t gaspi_state_vec_get(gaspi_state_t *state)
{
	auto &p = stand_in::me();
	for (unsigned k = 0; k < p.ranks; k++)
		state[k] = p.corrupt[k] ? GASPI_STATE_CORRUPT : GASPI_STATE_HEALTHY;
	return GASPI_SUCCESS;
}

#endif
