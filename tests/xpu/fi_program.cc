/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* fi_xpu(3) in one program: the provider's objects, opened through libfabric and exported, and kernels that post to them and read them by
 * strait_fi_xpu_device.cuh. A second process, of the host, is the target.
 *
 *     fi_program                       threads of this process are the kernel's lanes
 *     fi_program KERNELS.cubin GPU     a kernel on that GPU, with memory of its own; CUDA's driver alone is needed
 *
 * Prints "ok fi_program", or what was not so. */
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <strait_fi_xpu.h>

#include "driver.h"
#include "fi_turn.cuh"

typedef strait_xpu_u64 u64;
using strait::xpu::scope;
namespace hw = strait::xpu::hw;

static const char *role = "kernel";
#define CHECK_FORMAT "%s: "
#define CHECK_ARGS role
#include "must.h"

enum { limit_s = 60 };

/* What each process sends the other of itself, and the target of what it has seen at the end. */
struct card {
	char name[64];
	size_t length;
	u64 key;
};
struct seen {
	u64 data_count, data_sum, added[2];
};

static fi_info *info;
static fid_fabric *fabric;
static fid_domain *domain;
static fid_av *av;
static fid_mr *mr;

static void open_domain(void *memory)
{
	fi_info *hints = fi_allocinfo();
	fi_av_attr attr = {};
	attr.type = FI_AV_TABLE;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->tx_attr->size = 4 * fi_threads;
	hints->fabric_attr->prov_name = strdup("strait");
	MUST(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info));
	MUST(fi_fabric(info->fabric_attr, &fabric, nullptr));
	MUST(fi_domain(fabric, info, &domain, nullptr));
	MUST(fi_av_open(domain, &attr, &av, nullptr));
	MUST(fi_mr_reg(domain, memory, fi_memory, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0, 7, 0, &mr, nullptr));
}

/* Gives its own name and gets the other's, as an address. */
static fi_addr_t meet(int sock, fid_ep *ep, u64 *key)
{
	card mine = {}, theirs = {};
	fi_addr_t addr = FI_ADDR_UNSPEC;
	mine.length = sizeof mine.name;
	MUST(fi_getname(&ep->fid, mine.name, &mine.length));
	mine.key = fi_mr_key(mr);
	CHECK(send(sock, &mine, sizeof mine, 0) == sizeof mine);
	CHECK(recv(sock, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
	CHECK(fi_av_insert(av, theirs.name, 1, &addr, 0, nullptr) == 1);
	if (key)
		*key = theirs.key;
	return addr;
}

/* The host's process: a message with a tag goes back with 1 added to each byte and 1000 to the tag; one without goes back as
 * the word it has, with 1000 added. */
static void target(int sock)
{
	alignas(64) static char memory[fi_memory];
	static unsigned char tagged[fi_threads][64], plain[fi_threads][64];
	fi_cq_attr attr = {};
	fid_cq *cq;
	fid_ep *ep;
	seen all = {};
	role = "target";
	open_domain(memory);
	attr.format = FI_CQ_FORMAT_TAGGED;
	MUST(fi_cq_open(domain, &attr, &cq, nullptr));
	MUST(fi_endpoint(domain, info, &ep, nullptr));
	MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_ep_bind(ep, &av->fid, 0));
	MUST(fi_enable(ep));
	const fi_addr_t kernel = meet(sock, ep, nullptr);
	for (unsigned i = 0; i < fi_threads; i++) {
		MUST(fi_trecv(ep, tagged[i], fi_message, nullptr, kernel, 0, ~0ULL, tagged[i]));
		MUST(fi_recv(ep, plain[i], fi_message, nullptr, kernel, plain[i]));
	}
	const time_t begin = time(nullptr);
	char byte;
	while (recv(sock, &byte, 1, MSG_DONTWAIT) != 1) {
		CHECK(time(nullptr) - begin < limit_s);
		fi_cq_tagged_entry e = {};
		const ssize_t rc = fi_cq_read(cq, &e, 1);
		if (rc == -FI_EAGAIN) {
			sched_yield();
			continue;
		}
		CHECK(rc == 1);
		if (e.flags & FI_REMOTE_WRITE) {
			CHECK(e.flags & FI_REMOTE_CQ_DATA);
			all.data_count++;
			all.data_sum += e.data;
		} else if (e.flags & FI_RECV && e.flags & FI_TAGGED) {
			auto *buf = (unsigned char *)e.op_context;
			CHECK(e.len == fi_message);
			for (unsigned i = 0; i < fi_message; i++)
				buf[i]++;
			MUST(fi_tsend(ep, buf, fi_message, nullptr, kernel, 1000 + e.tag, buf));
		} else if (e.flags & FI_RECV) {
			CHECK(e.len == 8);
			u64 word;
			memcpy(&word, e.op_context, 8);
			word += 1000;
			memcpy(e.op_context, &word, 8);
			MUST(fi_send(ep, e.op_context, 8, nullptr, kernel, e.op_context));
		} else if (e.flags & FI_TAGGED) {
			MUST(fi_trecv(ep, e.op_context, fi_message, nullptr, kernel, 0, ~0ULL, e.op_context));
		} else {
			MUST(fi_recv(ep, e.op_context, fi_message, nullptr, kernel, e.op_context));
		}
	}
	all.added[0] = __atomic_load_n((u64 *)memory, __ATOMIC_ACQUIRE);
	all.added[1] = __atomic_load_n((u64 *)(memory + 8), __ATOMIC_ACQUIRE);
	/* What the last turn has put. */
	for (unsigned me = 0; me < fi_threads; me++) {
		u64 word;
		memcpy(&word, memory + 4096 + 64 * me + 48, 8);
		if (word == 0)
			continue;
		for (unsigned i = 0; i < fi_payload; i++)
			CHECK((unsigned char)memory[4096 + 64 * me + i] == fi_test::byte_of(word / 1000, me, i));
	}
	CHECK(send(sock, &all, sizeof all, 0) == sizeof all);
	CHECK(recv(sock, &byte, 1, 0) == 1);
	_exit(0);
}

/* The device: a GPU, or threads of this process. */
struct device {
	void *context = nullptr, *stream = nullptr, *module = nullptr;
	int gpu = -1;
	unsigned char *memory = nullptr;
	fi_args *args = nullptr;
	u64 *out = nullptr;

	device(const char *cubin, int number) : gpu(number)
	{
		if (!cubin) {
			memory = (unsigned char *)aligned_alloc(4096, fi_memory);
			memset(memory, 0, fi_memory);
			args = new fi_args();
			out = new u64[fi_threads];
			return;
		}
		std::ifstream in(cubin, std::ios::binary);
		const std::string code((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
		dptr at = 0;
		cu("cuInit", 0u);
		cu("cuDevicePrimaryCtxRetain", &context, gpu);
		cu("cuCtxSetCurrent", context);
		cu("cuModuleLoadData", &module, (const void *)code.data());
		cu("cuStreamCreate", &stream, 1u);
		cu("cuMemAlloc_v2", &at, (size_t)fi_memory);
		cu("cuMemsetD8_v2", at, (unsigned char)0, (size_t)fi_memory);
		cu("cuMemHostAlloc", (void **)&args, sizeof *args, 3u);
		cu("cuMemHostAlloc", (void **)&out, fi_threads * sizeof(u64), 3u);
		cu("cuCtxSynchronize");
		memory = (unsigned char *)(size_t)at;
	}

	unsigned warp() const { return gpu < 0 ? STRAIT_XPU_WARP : 32; }

	void run(u64 number, unsigned threads)
	{
		memset(out, 0xff, fi_threads * sizeof(u64));
		if (gpu < 0) {
			hw::launch(1, threads, number, [&](unsigned) {
				number == 0 ? fi_test::turn<scope::thread>(args, 0) : number == 1 ? fi_test::turn<scope::warp>(args, 1) : fi_test::turn<scope::block>(args, 2);
			});
			return;
		}
		static const char *const names[] = {"fi_thread", "fi_warp", "fi_block"};
		void *function = nullptr, *params[] = {&args};
		cu("cuModuleGetFunction", &function, module, names[number]);
		cu("cuLaunchKernel", function, 1u, 1u, 1u, threads, 1u, 1u, 0u, stream, (void **)params, (void **)nullptr);
		for (const time_t begin = time(nullptr); !stream_ended(stream);) {
			/* A kernel cannot be stopped. */
			CHECK(time(nullptr) - begin < limit_s);
			sched_yield();
		}
	}
};

static void program(const char *cubin, int gpu, int sock)
{
	device d(cubin, gpu);
	fi_strait_ops_xpu *ops;
	fi_strait_xpu_attr attr = {};
	fid_xpu_ctx *ctx;
	fid_ep *ep;
	fid_cq *cq;
	fid_cntr *cntr;
	fi_cq_attr cq_attr = {};
	fi_strait_xpu_export of_ep, of_cq, of_cntr;
	size_t length = 8;
	open_domain(d.memory);
	attr.iface = cubin ? FI_HMEM_CUDA : FI_HMEM_SYSTEM;
	attr.device = cubin ? (uint64_t)gpu : 0;
	cq_attr.format = FI_CQ_FORMAT_TAGGED;
	MUST(fi_open_ops(&domain->fid, FI_STRAIT_XPU_OPS, 0, (void **)&ops, nullptr));
	MUST(ops->ctx_open(domain, &attr, &ctx, nullptr));
	MUST(ops->endpoint(domain, info, ctx, &ep, nullptr));
	MUST(ops->cq_open(domain, &cq_attr, ctx, &cq, nullptr));
	MUST(ops->cntr_open(domain, nullptr, ctx, &cntr, nullptr));
	MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_ep_bind(ep, &cntr->fid, FI_WRITE));
	MUST(fi_ep_bind(ep, &av->fid, 0));
	MUST(fi_enable(ep));
	fi_args &a = *d.args;
	const fi_addr_t addr = meet(sock, ep, &a.key);
	MUST(ops->av_lookup(av, addr, &a.peer, &length, FI_STRAIT_XPU, ctx));
	/* The second, so that its number is not 0. */
	static char other[64];
	fid_mr *first;
	MUST(fi_mr_reg(domain, other, sizeof other, FI_READ | FI_WRITE, 0, 8, 0, &first, nullptr));
	MUST(ops->mr_desc(first, &a.region, &length, FI_STRAIT_XPU, ctx));
	MUST(ops->mr_desc(mr, &a.region, &length, FI_STRAIT_XPU, ctx));
	CHECK(a.region != 0);
	MUST(ops->ep_export(ep, 0, &of_ep));
	MUST(ops->cq_export(cq, 0, &of_cq));
	MUST(ops->cntr_export(cntr, 0, &of_cntr));
	static_assert(sizeof a.ep == sizeof of_ep, "fid_xpu_ep is what is exported");
	memcpy(&a.ep, &of_ep, sizeof a.ep);
	memcpy(&a.cq, &of_cq, sizeof a.cq);
	memcpy(&a.cntr, &of_cntr, sizeof a.cntr);
	a.wrong_key = a.key + 12345;
	a.memory = d.memory;
	a.out = d.out;
	u64 sum = 0;
	for (u64 number = 0; number < fi_turns; number++) {
		const unsigned threads = number == 0 ? 1 : number == 1 ? d.warp() : 2 * d.warp();
		d.run(number, threads);
		for (unsigned t = 0; t < threads; t++)
			if (d.out[t]) {
				fprintf(stderr, "turn %llu, thread %u of %u: fi_turn.cuh:%llu: not so\n", (unsigned long long)number, t, threads, (unsigned long long)d.out[t]);
				_exit(1);
			}
		a.added += threads;
		/* After the first turn, one more than it counts itself. */
		a.written += 3 * threads + (number == 0);
		sum += (u64)threads * (threads + 1) / 2;
	}
	seen all = {};
	CHECK(send(sock, "e", 1, 0) == 1);
	CHECK(recv(sock, &all, sizeof all, MSG_WAITALL) == sizeof all);
	CHECK(all.added[0] == a.added && all.added[1] == a.added && all.data_count == a.added && all.data_sum == sum);
	CHECK(send(sock, "e", 1, 0) == 1);
	MUST(fi_close(&ep->fid));
	MUST(fi_close(&cq->fid));
	MUST(fi_close(&cntr->fid));
	MUST(fi_close((fid *)ctx));
	MUST(fi_close(&first->fid));
	MUST(fi_close(&mr->fid));
	MUST(fi_close(&av->fid));
	MUST(fi_close(&domain->fid));
	MUST(fi_close(&fabric->fid));
}

int main(int argc, char **argv)
{
	int socks[2], state = 0;
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	if (argc != 1 && argc != 3) {
		fprintf(stderr, "fi_program [KERNELS.cubin GPU]\n");
		return 2;
	}
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0);
	alarm(2 * limit_s);
	/* Before CUDA is initialized. */
	const pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		target(socks[1]);
	close(socks[1]);
	try {
		program(argc > 1 ? argv[1] : nullptr, argc > 2 ? atoi(argv[2]) : -1, socks[0]);
	} catch (const std::exception &wrong) {
		fprintf(stderr, "FAILED %s\n", wrong.what());
		_exit(1);
	}
	CHECK(waitpid(child, &state, 0) == child && state == 0);
	puts("ok fi_program");
	return 0;
}
