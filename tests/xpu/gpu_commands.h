/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* gpu.cc's parts with commands: round trips through the host, the seed's ladder, and where queues are. */

#include <time.h>
#include <unistd.h>

/* Times of several runs, in turns with those of others: machines differ from one second to the next. */
enum { trips = 5 };
struct trip {
	const char *what;
	std::vector<double> us;

	void add(const u64 *out, u64 rounds)
	{
		us.push_back((double)out[0] / (double)rounds / 1000);
		if (out[1])
			fail(std::string("ring ") + what + ": code " + std::to_string((int)out[1]));
	}
	double median()
	{
		std::sort(us.begin(), us.end());
		return us[us.size() / 2];
	}
	void say(double bare)
	{
		printf("ring %-44s %8.3f us", what, median());
		if (bare > 0)
			printf("  %5.2f of a bare flag", median() / bare);
		printf("\n");
	}
};

/* A word to the CPU and back. */
static void bare_trip(machine &m, u64 rounds, trip &to)
{
	m.enter(0);
	u64 *words;
	cu("cuMemHostAlloc", (void **)&words, (size_t)4096, 3u);
	memset(words, 0, 4096);
	bool stop = false;
	std::thread echo([&] {
		for (u64 last = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED);) {
			const u64 v = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
			if (v != last)
				__atomic_store_n(&words[64], last = v, __ATOMIC_RELEASE);
		}
	});
	m.launch(0, m.stream[0], "bare_round_trip", 1, 1, {(u64)words, (u64)(words + 64), rounds, (u64)m.out[0]});
	m.wait(m.stream[0]);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	echo.join();
	to.add(m.out[0], rounds);
	cu("cuMemFreeHost", (void *)words);
}

/* GPU to CPU and back. */
static void ring_part(machine &m, u64 rounds)
{
	m.clear();
	trip bare = {"a bare flag to the CPU and back", {}};
	trip commands[] = {{"a command and its completion, by a thread", {}}, {"a command and its completion, by a warp", {}},
			   {"a command and its completion, by a thread, bell", {}}, {"a command and its completion, by a warp, bell", {}}};
	for (int i = 0; i < trips; i++) {
		bare_trip(m, rounds, bare);
		for (u64 k = 0; k < 4; k++) {
			host_rings rings(m, 1, 10, k >= 2, m.memory[0][1]);
			rings.start(0, 1);
			m.fill_tables(0, rings.ring);
			m.launch(0, m.stream[0], "command_round_trip", 1, k % 2 ? 32 : 1, {m.tables[0], rounds, k % 2, (u64)m.out[0]});
			m.wait(m.stream[0]);
			commands[k].add(m.out[0], rounds);
		}
	}
	bare.say(0);
	for (trip &c : commands)
		c.say(bare.median());
}

/* How kernels post: so many blocks of so many warps, into so many queues. */
struct posting {
	int step;
	unsigned blocks, queues;
	u64 count;
	unsigned warps;
};

/* Millions of commands a second of the kernel, with tables at `view`. */
static double posted(machine &m, u64 view, const posting &p, const char *what)
{
	m.launch(0, m.stream[0], "ladder", p.blocks, 32 * p.warps, {view, p.queues, (u64)p.step, p.count, (u64)m.out[0]});
	m.wait(m.stream[0]);
	u64 slowest = 1, code = 0;
	for (unsigned b = 0; b < p.blocks * p.warps; b++) {
		slowest = std::max(slowest, m.out[0][2 * b]);
		code = code ? code : m.out[0][2 * b + 1];
	}
	if (code)
		fail(std::string("ladder ") + what + ": code " + std::to_string((int)code));
	return (double)p.count * p.blocks * p.warps / (double)slowest * 1000;
}

/* The same with plain loops in so many threads. */
static double plain_loops(machine &m, const posting &p, bool bell, unsigned drains, const char *what)
{
	host_rings rings(m, p.queues, 10, bell, m.memory[0][1]);
	for (unsigned d = 0; d < drains; d++)
		rings.start(d, drains);
	m.fill_tables(0, rings.ring);
	return posted(m, m.tables[0], p, what);
}

/* As the seed's slides 26 to 31 go up. A command has 64 bytes. */
static void rung(machine &m, const char *what, int step, unsigned blocks, unsigned queues, bool bell, u64 count, unsigned drains, unsigned warps = 1)
{
	const double rate = plain_loops(m, {step, blocks, queues, count, warps}, bell, drains, what);
	printf("ladder %-58s %8.3f M/s %8.3f GB/s\n", what, rate, rate * 64 / 1000);
}

/* The same commands, 64 bytes each, by one thread of the CPU that goes from queue to queue: `count` to each. */
static void rung_by_cpu(machine &m, const char *what, int step, unsigned queues, bool bell, u64 count, unsigned drains)
{
	host_rings rings(m, queues, 10, bell, m.memory[0][1]);
	for (unsigned d = 0; d < drains; d++)
		rings.start(d, drains);
	strait_xpu_command nop = {};
	nop.op = STRAIT_XPU_OP_NOP;
	nop.region = STRAIT_XPU_NO_REGION;
	std::vector<u64> consumed(queues, 0);
	const auto begin = std::chrono::steady_clock::now();
	auto until = [&](const u64 *word, u64 least) {
		u64 v;
		for (u64 tries = 0; (v = __atomic_load_n(word, __ATOMIC_ACQUIRE)) < least; tries++)
			if (tries == 1ULL << 32)
				throw std::runtime_error(std::string("ladder ") + what + ": the drain has stopped");
		return v;
	};
	for (u64 i = 0; i < count; i++)
		for (unsigned q = 0; q < queues; q++) {
			const strait_xpu_ring &r = rings.ring[q];
			auto *status = (strait_xpu_status *)r.status;
			u64 words[STRAIT_XPU_SLOT_WORDS], *slot = ((strait_xpu_slot *)r.slots)[i & ((1u << r.log2_slots) - 1)].word;
			if ((i - consumed[q]) >> r.log2_slots)
				consumed[q] = until(&status->consumed, i - (1u << r.log2_slots) + 1);
			strait_xpu_pack(&nop, i, r.log2_slots, words);
			for (int w = 0; w < STRAIT_XPU_SLOT_WORDS; w++)
				__atomic_store_n(&slot[w], words[w], __ATOMIC_RELAXED);
			if (bell)
				__atomic_store_n(&((strait_xpu_produced *)r.produced)->bell, i + 1, __ATOMIC_RELEASE);
			if (step == LADDER_NAIVE)
				until(&status->done, i + 1);
		}
	for (const strait_xpu_ring &r : rings.ring)
		until(&((strait_xpu_status *)r.status)->done, count);
	const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
	const double rate = (double)count * queues / ns * 1000;
	printf("ladder %-58s %8.3f M/s %8.3f GB/s\n", what, rate, rate * 64 / 1000);
}

static void ladder_part(machine &m, u64 count)
{
	m.clear();
	rung_by_cpu(m, "CPU, 1 queue, bell and completion for each", LADDER_NAIVE, 1, true, count * 10, 1);
	rung_by_cpu(m, "CPU, 1 queue, bell for each", LADDER_BELL, 1, true, count * 100, 1);
	rung_by_cpu(m, "CPU, 1 queue, no bell", LADDER_BELL, 1, false, count * 100, 1);
	rung_by_cpu(m, "CPU, 30 queues, bell for each, 1 drain", LADDER_BELL, 30, true, count * 10, 1);
	rung_by_cpu(m, "CPU, 30 queues, no bell, 1 drain", LADDER_BELL, 30, false, count * 10, 1);
	rung_by_cpu(m, "CPU, 30 queues, no bell, 4 drains", LADDER_BELL, 30, false, count * 10, 4);
	rung(m, "1 thread, 1 queue, bell and completion for each", LADDER_NAIVE, 1, 1, true, count / 10, 1);
	rung(m, "1 thread, 1 queue, bell for each", LADDER_BELL, 1, 1, true, count, 1);
	rung(m, "1 thread, 1 queue, a bell for 32", LADDER_BATCH, 1, 1, true, count, 1);
	rung(m, "1 thread, 1 queue, no bell: lap bits alone", LADDER_BELL, 1, 1, false, count, 1);
	rung(m, "1 warp writes 32 at once, a bell for 32", LADDER_WARP, 1, 1, true, count / 32 * 32, 1);
	rung(m, "1 warp writes 32 at once, no bell", LADDER_WARP, 1, 1, false, count / 32 * 32, 1);
	rung(m, "1 block, 30 warps, 1 queue for all", LADDER_WARP, 1, 1, false, count / 320 * 32, 1, 30);
	rung(m, "1 block, 30 warps, a queue each, 1 drain", LADDER_WARP, 1, 30, false, count / 32 * 32, 1, 30);
	rung(m, "1 block, 30 warps, a queue each, 4 drains", LADDER_WARP, 1, 30, false, count / 32 * 32, 4, 30);
	rung(m, "30 blocks, 1 queue for all, warps", LADDER_WARP, 30, 1, false, count / 320 * 32, 1);
	rung(m, "30 blocks, a queue each, warps, 1 drain", LADDER_WARP, 30, 30, false, count / 32 * 32, 1);
	rung(m, "30 blocks, a queue each, warps, 4 drains", LADDER_WARP, 30, 30, false, count / 32 * 32, 4);
	rung(m, "30 blocks, a queue each, threads, 4 drains", LADDER_BELL, 30, 30, false, count, 4);
}

/* Queue and completions in the host's memory or the GPU's, two by two, with a kernel for the card: on another GPU, or on
 * another SM. */
static void placement_part(machine &m, u64 rounds)
{
	m.clear();
	void *host;
	m.enter(0);
	cu("cuMemHostAlloc", &host, (size_t)1 << 20, 3u);
	/* The names say where the kernel that posts is: its own GPU, or the card's. */
	static const char *names[] = {"host", "GPU", "card's GPU"};
	for (int queue = 0; queue < 3; queue++)
		for (int done = 0; done < 3; done++) {
			if (m.gpu[0] == m.gpu[1] && (queue == 2 || done == 2))
				continue;
			memset(host, 0, 1 << 20);
			for (int r = 0; r < 2; r++) {
				m.enter(r);
				cu("cuMemsetD8_v2", m.memory[r][1], (unsigned char)0, (size_t)1 << 20);
				cu("cuCtxSynchronize");
			}
			const u64 bases[] = {(u64)host, m.memory[0][1], m.memory[1][1]};
			strait_xpu_ring r = {};
			r.version = STRAIT_XPU_VERSION;
			r.log2_slots = 8;
			r.slots = bases[queue] + 65536;
			r.status = bases[done];
			r.produced = m.memory[0][1] + 4096;
			r.timeout_ns = 5000000000ULL;
			/* Both kernels find it at the same place of their own tables. */
			m.fill_tables(0, {r});
			m.fill_tables(1, {r});
			m.launch(1, m.other[1], "soft_card", 1, 32, {m.tables[1], rounds + 50, (u64)m.out[1]});
			m.launch(0, m.stream[0], "command_round_trip", 1, 32, {m.tables[0], rounds, 1, (u64)m.out[0]});
			m.wait(m.stream[0]);
			m.wait(m.other[1]);
			printf("placement queue: %-11s completions: %-11s %8.3f us\n", names[queue], names[done],
			       (double)m.out[0][0] / (double)rounds / 1000);
			if (m.out[0][1] || m.out[1][0])
				fail("placement: code " + std::to_string((int)m.out[0][1]) + " " + std::to_string((int)m.out[1][0]));
		}
}

#define STRAIT(name) ((decltype(&name))dlsym(lib, #name))

/* A context of libstrait_xpu.so of one process, whose kernels post to it. */
struct drained {
	void *lib;
	strait_xpu *x = nullptr;
	void *view = nullptr;

	drained(void *lib, machine &m, unsigned threads, unsigned queues, u64 idle_ns) : lib(lib)
	{
		strait_xpu_options options = {};
		options.size = sizeof options;
		options.threads = threads;
		options.idle_ns = idle_ns;
		strait_xpu_ring_options ring = {};
		ring.size = sizeof ring;
		ring.log2_slots = 10;
		std::vector<char> blob(65536);
		size_t length = blob.size();
		const void *blobs[1] = {blob.data()};
		u32 number = 0;
		m.enter(0);
		int rc = STRAIT(strait_xpu_open)(&options, &x);
		rc = rc ? rc : STRAIT(strait_xpu_register)(x, (void *)m.memory[0][0], (size_t)m.length[0], &number);
		for (unsigned q = 0; q < queues; q++)
			rc = rc ? rc : STRAIT(strait_xpu_add_ring)(x, &ring, &number);
		rc = rc ? rc : STRAIT(strait_xpu_blob)(x, blob.data(), &length);
		rc = rc ? rc : STRAIT(strait_xpu_connect)(x, 0, 1, blobs, &length);
		rc = rc ? rc : STRAIT(strait_xpu_begin)(x, &view);
		if (rc)
			fail(std::string("drain: ") + std::to_string(rc) + " " + STRAIT(strait_xpu_error)());
	}
	~drained()
	{
		STRAIT(strait_xpu_end)(x);
		STRAIT(strait_xpu_close)(x);
	}
};

/* The drain's rate beside plain loops', in turns. */
static void drain_rate(void *lib, machine &m, const char *what, const posting &p, unsigned threads)
{
	std::vector<double> plain, ours;
	for (int i = 0; i < trips; i++) {
		plain.push_back(plain_loops(m, p, false, threads, what));
		drained d(lib, m, threads, p.queues, 0);
		if (!d.view)
			return;
		ours.push_back(posted(m, (u64)d.view, p, what));
	}
	std::sort(plain.begin(), plain.end());
	std::sort(ours.begin(), ours.end());
	printf("drain %-50s %8.3f M/s, plain loops %8.3f, %5.2f of these\n", what, ours[trips / 2], plain[trips / 2], ours[trips / 2] / plain[trips / 2]);
}

static double seconds(clockid_t clock)
{
	timespec at;
	clock_gettime(clock, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* What an idle context takes of a core, and how long a command waits for it, with a call that wakes it and without. */
static void drain_idle(void *lib, machine &m, u64 idle_ns)
{
	drained d(lib, m, 1, 1, idle_ns);
	if (!d.view)
		return;
	usleep(300000);
	const double begin = seconds(CLOCK_MONOTONIC), took = seconds(CLOCK_PROCESS_CPUTIME_ID);
	sleep(2);
	printf("drain idle_ns %8llu: %6.2f %% of a core\n", (unsigned long long)idle_ns,
	       (seconds(CLOCK_PROCESS_CPUTIME_ID) - took) / (seconds(CLOCK_MONOTONIC) - begin) * 100);
	for (int wakes = 0; wakes < 2; wakes++) {
		trip one = {wakes ? "a kernel of 51 commands, thread woken before" : "a kernel of 51 commands, thread idle before", {}};
		for (int i = 0; i < 2 * trips + 1; i++) {
			usleep(50000 + 3000 * i);
			if (wakes)
				STRAIT(strait_xpu_wake)(d.x);
			/* With the kernel's start and end: the first of its commands finds the thread asleep. */
			const double from = seconds(CLOCK_MONOTONIC);
			m.launch(0, m.stream[0], "command_round_trip", 1, 1, {(u64)d.view, 1, 0, (u64)m.out[0]});
			m.wait(m.stream[0]);
			one.us.push_back((seconds(CLOCK_MONOTONIC) - from) * 1e6);
			if (m.out[0][1])
				fail(std::string("drain: ") + one.what + ": code " + std::to_string((int)m.out[0][1]));
		}
		one.say(0);
	}
}

/* libstrait_xpu.so's drain, from STRAIT_LIB_DIR or the linker's path: round trips, rates, and what it takes when idle. */
static void drain_part(machine &m, u64 rounds)
{
	const char *dir = getenv("STRAIT_LIB_DIR");
	void *lib = dlopen((dir ? std::string(dir) + "/libstrait_xpu.so" : std::string("libstrait_xpu.so.0")).c_str(), RTLD_NOW);
	if (!lib) {
		printf("drain: not run, there is no libstrait_xpu.so: %s\n", dlerror());
		return;
	}
	m.clear();
	{
		drained d(lib, m, 1, 1, 0);
		if (!d.view)
			return;
		trip bare = {"a bare flag to the CPU and back", {}};
		trip commands[] = {{"libstrait_xpu's drain, a command by a thread", {}}, {"libstrait_xpu's drain, a command by a warp", {}}};
		for (int i = 0; i < trips; i++) {
			bare_trip(m, rounds, bare);
			for (u64 warp = 0; warp < 2; warp++) {
				m.launch(0, m.stream[0], "command_round_trip", 1, warp ? 32 : 1, {(u64)d.view, rounds, warp, (u64)m.out[0]});
				m.wait(m.stream[0]);
				commands[warp].add(m.out[0], rounds);
			}
		}
		bare.say(0);
		for (trip &c : commands)
			c.say(bare.median());
	}
	const u64 count = rounds * 20 / 320 * 32;
	drain_rate(lib, m, "4 blocks, 1 queue, warps", {LADDER_WARP, 4, 1, count, 1}, 1);
	drain_rate(lib, m, "1 block, 30 warps, 1 queue for all", {LADDER_WARP, 1, 1, count, 30}, 1);
	drain_rate(lib, m, "1 block, 30 warps, a queue each, 1 thread", {LADDER_WARP, 1, 30, count, 30}, 1);
	drain_rate(lib, m, "1 block, 30 warps, a queue each, 4 threads", {LADDER_WARP, 1, 30, count, 30}, 4);
	drain_rate(lib, m, "30 blocks, a queue each, warps, 4 threads", {LADDER_WARP, 30, 30, count, 1}, 4);
	drain_idle(lib, m, 0);
	drain_idle(lib, m, 25000000);
}
