/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The loop of GPUDirect Async's latency program by include/strait_gds.h: receives are posted, and the stream sends, waits for both
 * completions and launches a kernel, or waits, launches and sends. Each kernel adds 1 to all words, so that after n iterations the
 * words say whether a message was lost, or taken twice. Lines that end in "verbs" stand for other ones with verbs: see
 * docs/streams.md. CUDA's driver, or its stand-in, is libcuda.so.1.
 *
 *     gds_latency stream|descriptors|cpu ITERATIONS
 *     gds_latency contract      what the calls refuse, words, an RDMA write, and completions after the peer has ended
 */
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <strait_gds.h> /* verbs */

typedef unsigned long long dptr;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuStreamCreate(CUstream *, unsigned);
extern int cuModuleLoadData(void **, const char *), cuModuleGetFunction(void **, void *, const char *), cuMemAlloc_v2(dptr *, size_t);
extern int cuMemcpyDtoH_v2(void *, dptr, size_t), cuMemcpyHtoD_v2(dptr, const void *, size_t), cuStreamQuery(CUstream);
extern int cuMemHostAlloc(void **, size_t, unsigned);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

enum { size = 128, batch = 20, words = size / 4, limit_s = 60 };
enum { recv_id = 1, send_id = 2 };

static const char *role = "client";
#define CHECK(what)                                                                             \
	do {                                                                                    \
		if (!(what)) {                                                                  \
			fprintf(stderr, "%s: line %d: %s (%s)\n", role, __LINE__, #what, strait_stream_error()); \
			_exit(1);                                                               \
		}                                                                               \
	} while (0)

/* add: thread i stores word i of `from`, and 1, in word i of `to`. */
static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			     ".visible .entry add(.param .u64 to, .param .u64 from)\n{\n"
			     ".reg .b32 %r<4>;\n.reg .b64 %d<5>;\n"
			     "ld.param.u64 %d0, [to];\nld.param.u64 %d1, [from];\n"
			     "mov.u32 %r0, %tid.x;\nmov.u32 %r2, 4;\nmul.wide.u32 %d2, %r0, %r2;\n"
			     "add.u64 %d3, %d0, %d2;\nadd.u64 %d4, %d1, %d2;\n"
			     "ld.global.u32 %r1, [%d4+0];\nmov.u32 %r3, 1;\nadd.u32 %r1, %r1, %r3;\nst.global.u32 [%d3+0], %r1;\nret;\n}\n";

struct context {
	CUstream stream;
	void *add;
	dptr tx, rx;
	struct gds_qp *qp;
	int client, descriptors, cpu, sock;
};

static void launch(struct context *c, dptr to, dptr from)
{
	void *args[] = {&to, &from};
	CHECK(cuLaunchKernel(c->add, 1, 1, 1, words, 1, 1, 0, c->stream, args, NULL) == 0);
}

static void end_of_stream(struct context *c)
{
	const time_t begin = time(NULL);
	int rc;
	while ((rc = cuStreamQuery(c->stream)) == 600) {
		CHECK(time(NULL) - begin < limit_s);
		usleep(20);
	}
	CHECK(rc == 0);
}

static void init(struct context *c, int client, int sock)
{
	char mine[16384], theirs[16384];		      /* verbs */
	size_t length = sizeof mine, len;		      /* verbs */
	gds_qp_init_attr_t attr;
	uint32_t start[words], region;
	void *ctx, *module;
	c->client = client;
	c->sock = sock;
	CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&ctx, 0) == 0 && cuCtxSetCurrent(ctx) == 0);
	CHECK(cuStreamCreate(&c->stream, 1) == 0 && cuModuleLoadData(&module, kernel) == 0);
	CHECK(cuModuleGetFunction(&c->add, module, "add") == 0);
	CHECK(cuMemAlloc_v2(&c->tx, size) == 0 && cuMemAlloc_v2(&c->rx, size) == 0);
	for (unsigned i = 0; i < words; i++)
		start[i] = client ? 1000 * i : 0;
	CHECK(cuMemcpyHtoD_v2(c->tx, start, size) == 0);
	memset(&attr, 0, sizeof attr);
	attr.cap.max_send_wr = batch;
	attr.cap.max_recv_wr = batch;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	attr.qp_type = IBV_QPT_RC;
	c->qp = gds_create_qp(NULL, NULL, &attr, 0, GDS_CREATE_QP_DEFAULT); /* verbs */
	CHECK(c->qp);
	CHECK(strait_stream_register(strait_gds_endpoint(c->qp), (void *)(uintptr_t)c->rx, size, &region) == 0); /* verbs */
	CHECK(strait_gds_blob(c->qp, mine, &length) == 0);    /* verbs */
	CHECK(send(sock, &length, sizeof length, 0) == sizeof length && send(sock, mine, length, 0) == (ssize_t)length); /* verbs */
	CHECK(recv(sock, &len, sizeof len, MSG_WAITALL) == sizeof len && len <= sizeof theirs); /* verbs */
	CHECK(recv(sock, theirs, len, MSG_WAITALL) == (ssize_t)len); /* verbs */
	CHECK(strait_gds_connect(c->qp, theirs, len) == 0);   /* verbs */
}

static struct ibv_sge at(dptr buffer)
{
	struct ibv_sge sge;
	memset(&sge, 0, sizeof sge);
	sge.addr = buffer;
	sge.length = size;
	return sge;
}

static void post_recv(struct context *c, int n)
{
	struct ibv_sge sge = at(c->rx);
	struct ibv_recv_wr wr, *bad;
	memset(&wr, 0, sizeof wr);
	wr.wr_id = recv_id;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	for (int i = 0; i < n; i++)
		CHECK(gds_post_recv(c->qp, &wr, &bad) == 0); /* verbs */
}

static gds_send_wr send_wr(struct ibv_sge *sge)
{
	gds_send_wr wr;
	memset(&wr, 0, sizeof wr);
	wr.wr_id = send_id;
	wr.sg_list = sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND;
	return wr;
}

/* What a side has its stream do between two kernels; `receives`: it waits for a message as well, behind the send or alone. */
static void post(struct context *c, int sends, int receives)
{
	struct ibv_sge sge = at(c->tx);
	gds_send_wr wr = send_wr(&sge), *bad;
	gds_send_request_t send_rq;
	gds_wait_request_t wait_tx, wait_rx;
	gds_descriptor_t descs[3];
	size_t k = 0;
	if (!c->descriptors && !c->cpu) {
		if (sends) {
			CHECK(gds_stream_queue_send(c->stream, c->qp, &wr, &bad) == 0);
			CHECK(gds_stream_wait_cq(c->stream, &c->qp->send_cq, 0) == 0);
		}
		if (receives)
			CHECK(gds_stream_wait_cq(c->stream, &c->qp->recv_cq, 0) == 0);
		return;
	}
	if (sends) {
		CHECK(gds_prepare_send(c->qp, &wr, &bad, &send_rq) == 0);
		descs[k].tag = GDS_TAG_SEND;
		descs[k++].send = &send_rq;
		CHECK(gds_prepare_wait_cq(&c->qp->send_cq, &wait_tx, 0) == 0);
		descs[k].tag = GDS_TAG_WAIT;
		descs[k++].wait = &wait_tx;
	}
	if (receives) {
		CHECK(gds_prepare_wait_cq(&c->qp->recv_cq, &wait_rx, 0) == 0);
		descs[k].tag = GDS_TAG_WAIT;
		descs[k++].wait = &wait_rx;
	}
	if (!c->cpu) {
		CHECK(gds_stream_post_descriptors(c->stream, k, descs, 0) == 0);
		return;
	}
	end_of_stream(c);
	CHECK(gds_post_descriptors(k, descs, 0) == 0);
}

static void poll_cq(struct gds_cq *cq, uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc[batch + 1];
	CHECK(gds_poll_cq(cq, batch + 1, wc) == batch); /* verbs */
	for (int i = 0; i < batch; i++)
		CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == id && wc[i].opcode == opcode && wc[i].byte_len == size);
}

static void loop(struct context *c, long iterations)
{
	uint32_t found[words];
	for (long done = 0; done < iterations; done += batch) {
		post_recv(c, batch);
		for (int i = 0; i < batch; i++) {
			post(c, c->client, 1);
			launch(c, c->tx, c->rx);
			if (!c->client)
				post(c, 1, 0);
		}
		end_of_stream(c);
		poll_cq(&c->qp->send_cq, send_id, IBV_WC_SEND);
		poll_cq(&c->qp->recv_cq, recv_id, IBV_WC_RECV);
		CHECK(cuMemcpyDtoH_v2(found, c->tx, size) == 0);
		for (unsigned i = 0; i < words; i++)
			CHECK(found[i] == 1000 * i + 2 * (uint32_t)(done + batch) - !c->client);
	}
	CHECK(gds_destroy_qp(c->qp) == 0);
}

static void together(struct context *c)
{
	char byte = 0;
	CHECK(send(c->sock, &byte, 1, 0) == 1 && recv(c->sock, &byte, 1, MSG_WAITALL) == 1);
}

static void contract(struct context *c)
{
	struct ibv_sge sge = at(c->tx), two[2];
	struct ibv_recv_wr recv_wr, *bad_recv;
	gds_send_wr wr = send_wr(&sge), *bad;
	gds_qp_init_attr_t attr;
	gds_wait_request_t wait;
	gds_wait_value32_t wait32;
	gds_descriptor_t descs[4];
	struct ibv_wc wc[4];
	uint32_t found[words], from[2] = {5, 6}, *host;
	int version = 0;
	void *page;

	CHECK(gds_query_param(GDS_PARAM_VERSION, &version) == 0 && version == 0x20002 && GDS_API_VERSION_COMPATIBLE(version));
	CHECK(gds_query_param(GDS_NUM_PARAMS, &version) == EINVAL && !GDS_API_VERSION_COMPATIBLE(0x10002) && !GDS_API_VERSION_COMPATIBLE(0x20001));
	memset(&attr, 0, sizeof attr);
	attr.qp_type = IBV_QPT_UD;
	CHECK(!gds_create_qp(NULL, NULL, &attr, 0, 0) && errno == EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	CHECK(!gds_create_qp(NULL, NULL, &attr, 0, 1 << 9) && errno == EINVAL);

	/* Waits for what nothing was posted for; work that cannot be. */
	CHECK(gds_stream_wait_cq(c->stream, &c->qp->recv_cq, 0) == ENOENT && gds_stream_wait_cq(c->stream, &c->qp->send_cq, 0) == ENOENT);
	CHECK(gds_stream_wait_cq(c->stream, &c->qp->recv_cq, 1) == EINVAL);
	two[0] = two[1] = sge;
	wr.sg_list = two;
	wr.num_sge = 2;
	CHECK(gds_stream_queue_send(c->stream, c->qp, &wr, &bad) == EINVAL && bad == &wr);
	wr = send_wr(&sge);
	wr.opcode = (enum ibv_wr_opcode)4;
	CHECK(gds_post_send(c->qp, &wr, &bad) == EOPNOTSUPP);
	CHECK(gds_poll_cq(&c->qp->send_cq, 4, wc) == 0);

	/* Words, by a stream and by the CPU. */
	CHECK(cuMemHostAlloc(&page, 4096, 0) == 0);
	host = (uint32_t *)page;
	memset(host, 0, 4096);
	CHECK(gds_prepare_wait_value32(&wait32, host, 1, GDS_WAIT_COND_GEQ, GDS_MEMORY_IO) == EOPNOTSUPP);
	CHECK(gds_prepare_wait_value32(&wait32, host, 1, GDS_WAIT_COND_GEQ, 0) == EINVAL);
	for (int by_cpu = 0; by_cpu < 2; by_cpu++) {
		memset(host, 0, 4096);
		descs[0].tag = GDS_TAG_WRITE_MEMORY;
		CHECK(gds_prepare_write_memory(&descs[0].writemem, (uint8_t *)(host + 8), (uint8_t *)from, 8, GDS_MEMORY_HOST) == 0);
		descs[1].tag = GDS_TAG_WRITE_VALUE32;
		CHECK(gds_prepare_write_value32(&descs[1].write32, host, 7, GDS_MEMORY_HOST | GDS_WRITE_PRE_BARRIER) == 0);
		descs[2].tag = GDS_TAG_WAIT_VALUE32;
		CHECK(gds_prepare_wait_value32(&descs[2].wait32, host, 7, GDS_WAIT_COND_EQ, GDS_MEMORY_GPU | GDS_WAIT_POST_FLUSH) == 0);
		descs[3].tag = GDS_TAG_WRITE_VALUE32;
		CHECK(gds_prepare_write_value32(&descs[3].write32, host + 1, 9, GDS_MEMORY_GPU) == 0);
		if (by_cpu)
			CHECK(gds_post_descriptors(4, descs, 0) == 0);
		else
			CHECK(gds_stream_post_descriptors(c->stream, 4, descs, 0) == 0);
		end_of_stream(c);
		CHECK(host[0] == 7 && host[1] == 9 && host[8] == 5 && host[9] == 6);
	}
	descs[2].tag = (gds_tag_t)9;
	CHECK(gds_stream_post_descriptors(c->stream, 4, descs, 0) == EINVAL && gds_post_descriptors(1, descs, 1) == EINVAL);

	/* An RDMA write, and a message behind it; the room of a queue; then the peer ends. */
	if (!c->client) {
		memset(&recv_wr, 0, sizeof recv_wr);
		CHECK(gds_post_recv(c->qp, &recv_wr, &bad_recv) == 0); /* of no bytes */
		CHECK(gds_stream_wait_cq(c->stream, &c->qp->recv_cq, 0) == 0);
		end_of_stream(c);
		CHECK(gds_poll_cq(&c->qp->recv_cq, 4, wc) == 1 && wc[0].status == IBV_WC_SUCCESS && wc[0].byte_len == 0);
		CHECK(cuMemcpyDtoH_v2(found, c->rx, size) == 0);
		for (unsigned i = 0; i < words; i++)
			CHECK(found[i] == 1000 * i);
		together(c);
		_exit(0);
	}
	wr = send_wr(&sge);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = 3;
	CHECK(gds_stream_queue_send(c->stream, c->qp, &wr, &bad) == EINVAL);
	wr.wr.rdma.rkey = 0;
	CHECK(gds_stream_queue_send(c->stream, c->qp, &wr, &bad) == 0);
	wr = send_wr(NULL);
	wr.num_sge = 0;
	CHECK(gds_stream_queue_send(c->stream, c->qp, &wr, &bad) == 0);
	end_of_stream(c);
	CHECK(gds_poll_cq(&c->qp->send_cq, 4, wc) == 2 && wc[0].opcode == IBV_WC_RDMA_WRITE && wc[1].opcode == IBV_WC_SEND);
	post_recv(c, batch);
	memset(&recv_wr, 0, sizeof recv_wr);
	CHECK(gds_post_recv(c->qp, &recv_wr, &bad_recv) == ENOMEM && bad_recv == &recv_wr);
	CHECK(gds_prepare_wait_cq(&c->qp->recv_cq, &wait, 0) == 0 && gds_stream_post_wait_cq(c->stream, &wait) == 0);
	CHECK(gds_poll_cq(&c->qp->recv_cq, 4, wc) == 0 && gds_destroy_qp(c->qp) == EBUSY);
	together(c);
	end_of_stream(c);
	CHECK(gds_poll_cq(&c->qp->recv_cq, 4, wc) == 4 && (wc[0].status == IBV_WC_RETRY_EXC_ERR || wc[0].status == IBV_WC_WR_FLUSH_ERR));
	CHECK(gds_destroy_qp(c->qp) == 0);
}

int main(int argc, char **argv)
{
	struct context c = {0};
	int pair[2], status = 0;
	const char *way = argc > 1 ? argv[1] : "";
	const int is_contract = !strcmp(way, "contract");
	c.descriptors = !strcmp(way, "descriptors");
	c.cpu = !strcmp(way, "cpu");
	if (!is_contract && (argc != 3 || !(c.descriptors || c.cpu || !strcmp(way, "stream"))))
		return fprintf(stderr, "usage: gds_latency stream|descriptors|cpu ITERATIONS, gds_latency contract\n"), 2;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	const pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		role = "server";
	close(pair[!child ? 0 : 1]);
	init(&c, child != 0, pair[!child ? 1 : 0]);
	if (is_contract)
		contract(&c);
	else
		loop(&c, atol(argv[2]));
	if (!child)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	printf("ok gds_latency %s\n", way);
	return 0;
}
