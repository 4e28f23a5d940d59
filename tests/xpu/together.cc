/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device library with threads as lanes over the host's side as it is: two processes, libstrait_xpu.so's tables, rings and
 * drain. Region 0 is memory that peers map, region 1 is reached by commands alone. Prints "ok together". */
#include <errno.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "strait_xpu.h"
#include "world.h"

#define MUST(call)                                                                                        \
	do {                                                                                              \
		const int rc_ = (call);                                                                   \
		if (rc_) {                                                                                \
			fprintf(stderr, "rank %d: %s: %d %s\n", rank, #call, rc_, strait_xpu_error());    \
			_exit(1);                                                                         \
		}                                                                                         \
	} while (0)

enum : size_t { size = 1 << 20 };

/* The other's bytes for ours. */
static std::vector<char> swap(int fd, const std::vector<char> &mine)
{
	size_t n = mine.size();
	CHECK(write(fd, &n, sizeof n) == sizeof n && write(fd, mine.data(), n) == (ssize_t)n);
	CHECK(recv(fd, &n, sizeof n, MSG_WAITALL) == sizeof n);
	std::vector<char> theirs(n);
	CHECK(recv(fd, theirs.data(), n, MSG_WAITALL) == (ssize_t)n);
	return theirs;
}

template <scope S> static void turns(const strait_xpu_context *ctx, u32 rank, u32 region, u8 *mine, u32 flags, u64 turn)
{
	window to, back;
	CHECK(open(&to, ctx, 1 - rank, region) == ok && open(&back, ctx, 1 - rank, 0) == ok);
	const u64 *signal_word = (const u64 *)(mine + 64), *ack = (const u64 *)(((strait_xpu_region *)ctx->regions)[0].base + 128);
	/* Regions take turns; each counts on. */
	const u64 before = turn / 2 * 200, acked = turn * 100;
	for (u64 i = 0; i < 100; i++) {
		const u64 n = 9 + random_of(i) % 3000, at = 8192 + random_of(i) % 64;
		if (rank == 0) {
			for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
				mine[65536 + j] = pattern(i, j);
			hw::sync<S>();
			int rc;
			while ((rc = put_signal<S>(to, at, mine + 65536, n, 64, flags & add ? 2 : before + (i + 1) * 2, flags)) == err_again)
				;
			CHECK(rc == ok);
			CHECK(wait_until<S>(ctx, ack, cmp::ge, acked + i + 1, 20000000000LL, 1) == ok);
		} else {
			CHECK(wait_until<S>(ctx, signal_word, cmp::ge, before + (i + 1) * 2, 20000000000LL, 0) == ok);
			for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
				CHECK(mine[at + j] == pattern(i, j));
			CHECK(signal<S>(back, 128, acked + i + 1) == ok);
		}
	}
	CHECK(quiet<S>(to) == ok);
}

/* Words, notifications, and a get, by commands; both ranks at once. */
static void by_commands(const strait_xpu_context *ctx, u32 rank, u8 *mine)
{
	window to;
	u32 id = 0;
	CHECK(open(&to, ctx, 1 - rank, 1) == ok && to.mapped == 0);
	u64 *old = (u64 *)(mine + 1024);
	for (u64 i = 0; i < 20; i++) {
		CHECK(atomic_fetch_add(to, 256, 3, old) == ok && *old == 3 * i);
		CHECK(atomic_add(to, 264, i) == ok);
	}
	CHECK(atomic_swap(to, 272, 41, old) == ok && *old == 0);
	CHECK(atomic_compare_swap(to, 272, 41, 42, old) == ok && *old == 41);
	memcpy(mine + 4096, "what is here", 12);
	CHECK(put<scope::thread>(to, 5000, mine + 4096, 12) == ok && quiet<scope::thread>(to) == ok);
	CHECK(get<scope::thread>(to, mine + 6000, 5000, 12) == ok && quiet<scope::thread>(to) == ok);
	CHECK(!memcmp(mine + 6000, "what is here", 12));
	CHECK(notify<scope::thread>(to, 512, 5, 77) == ok);
	CHECK(notify_waitsome<scope::thread>(ctx, (const u32 *)(mine + 512), 0, 16, &id, 20000000000LL) == ok && id == 5);
	CHECK(notify_reset((u32 *)(mine + 512), id) == 77);
	CHECK(hw::load_acquire((const u64 *)(mine + 256)) == 60 && hw::load_acquire((const u64 *)(mine + 264)) == 190);
	/* Outside the region: the device refuses it; past the device's check the target does. */
	CHECK(put<scope::thread>(to, size, mine, 8) == err_inval);
	to.length += 4096;
	CHECK(put<scope::thread>(to, size, mine, 64) == ok && quiet<scope::thread>(to) < 0);
	u32 code = 0, ticket = 0;
	CHECK(last_error(to, &code, &ticket) && code != 0);
}

static int play(int rank, int fd)
{
	strait_xpu_options options = {};
	options.size = sizeof options;
	strait_xpu *x = nullptr;
	MUST(strait_xpu_open(&options, &x));
	void *shared = nullptr, *own = nullptr;
	u32 region = 9;
	MUST(strait_xpu_allocate(x, size, &region, &shared));
	own = aligned_alloc(4096, size);
	memset(own, 0, size);
	MUST(strait_xpu_register(x, own, size, &region));
	CHECK(region == 1);
	strait_xpu_ring_options ring = {};
	ring.size = sizeof ring;
	ring.log2_slots = 4;
	u32 number = 9;
	MUST(strait_xpu_add_ring(x, &ring, &number));
	std::vector<char> blob(65536);
	size_t length = blob.size();
	MUST(strait_xpu_blob(x, blob.data(), &length));
	blob.resize(length);
	const std::vector<char> theirs = swap(fd, blob);
	const void *blobs[2] = {rank ? theirs.data() : blob.data(), rank ? blob.data() : theirs.data()};
	const size_t lengths[2] = {rank ? theirs.size() : blob.size(), rank ? blob.size() : theirs.size()};
	MUST(strait_xpu_connect(x, (u32)rank, 2, blobs, lengths));
	void *view = nullptr;
	MUST(strait_xpu_begin(x, &view));
	swap(fd, {'b'});
	const auto *ctx = (const strait_xpu_context *)view;
	hw::launch(1, 2 * STRAIT_XPU_WARP, 1, [&](unsigned) {
		if (hw::thread_of_block() == 0) {
			turns<scope::thread>(ctx, (u32)rank, 0, (u8 *)shared, strong, 0);
			turns<scope::thread>(ctx, (u32)rank, 1, (u8 *)own, weak, 1);
		}
		hw::sync<scope::block>();
		if (hw::thread_of_block() < STRAIT_XPU_WARP) {
			turns<scope::warp>(ctx, (u32)rank, 0, (u8 *)shared, add, 2);
			turns<scope::warp>(ctx, (u32)rank, 1, (u8 *)own, strong, 3);
		}
		hw::sync<scope::block>();
		turns<scope::block>(ctx, (u32)rank, 0, (u8 *)shared, weak, 4);
		turns<scope::block>(ctx, (u32)rank, 1, (u8 *)own, add, 5);
		hw::sync<scope::block>();
		if (hw::thread_of_block() == 0)
			by_commands(ctx, (u32)rank, (u8 *)own);
	});
	swap(fd, {'e'});
	MUST(strait_xpu_end(x));
	/* A peer that is in the middle of something is waited for. */
	int rc;
	while ((rc = strait_xpu_close(x)) == -EBUSY)
		usleep(1000);
	MUST(rc);
	return 0;
}

int main()
{
	int fds[2], state = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	const pid_t child = fork();
	if (child == 0)
		_exit(play(1, fds[1]));
	close(fds[1]);
	const int rc = play(0, fds[0]);
	CHECK(waitpid(child, &state, 0) == child && state == 0);
	if (rc == 0)
		puts("ok together");
	return rc;
}
