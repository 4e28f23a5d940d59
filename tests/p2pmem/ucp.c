/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Two processes with memory of a device's each, under UCX (ci/suite/guest p2pmem):  ucp PUBLISHER
 */
#include "peer.h"

#include "../ucx/pair.h"

#define WINDOW ((size_t)2 << 20)

static const char *publisher;
static struct peer peer;

static void own_memory(void) { peer_alloc(&peer, publisher, 2 * WINDOW); }

static void messages(void)
{
	static const size_t sizes[] = {1, 64, 4000, 8192, 65536, 1 << 20};
	unsigned char *host = malloc(1 << 20), *ours = peer.at + WINDOW;
	ucp_request_param_t p = {0};

	for (size_t k = 0; k < LENGTH(sizes); k++)
		for (int way = 1; way < 4; way++) {
			unsigned char *from = way & 1 ? ours : host, *to = way & 2 ? ours + (1 << 20) - 4096 : host;
			size_t n = sizes[k] > WINDOW / 4 && way == 3 ? WINDOW / 4 : sizes[k];
			ucs_status_ptr_t r, s;

			if (from == ours && to != host)
				to = ours + WINDOW / 2;
			fill(from, n, k + way + me);
			if (from != to)
				memset(to, 0, n);
			else
				continue;
			r = ucp_tag_recv_nbx(worker, to, n, k * 4 + way, ~0ull, &p);
			meet();
			s = ucp_tag_send_nbx(ep, from, n, k * 4 + way, &p);
			check(finish(s, "send"), "send");
			check(finish(r, "receive"), "receive");
			expect(to, n, k + way + !me, "message");
			meet();
		}
	free(host);
}

static void one_sided(void)
{
	static const size_t sizes[] = {1, 100, 8192, 100001, 1 << 20};
	ucp_mem_map_params_t m = {0};
	ucp_request_param_t p = {0};
	struct window w = {0};
	uint64_t one = 1;

	memset(peer.at, 0, WINDOW);
	m.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
	m.length = WINDOW;
	m.address = w.memory = peer.at;
	share_window(&w, &m);
	for (size_t k = 0; k < LENGTH(sizes); k++) {
		size_t n = sizes[k];

		fill(peer.at + WINDOW, n, k + me);
		check(finish(ucp_put_nbx(ep, peer.at + WINDOW, n, w.remote + 64, w.rkey, &p), "put"), "put");
		flush();
		meet();
		expect(peer.at + 64, n, k + !me, "put");
		memset(peer.at + WINDOW, 0, n);
		check(finish(ucp_get_nbx(ep, peer.at + WINDOW, n, w.remote + 64, w.rkey, &p), "get"), "get");
		expect(peer.at + WINDOW, n, k + me, "get");
		meet();
	}
	p.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
	p.datatype = ucp_dt_make_contig(8);
	for (int i = 0; i < 5; i++)
		check(finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, w.remote, w.rkey, &p), "add"), "add");
	flush();
	meet();
	if (*(volatile uint64_t *)peer.at != 5)
		die("%llu, not 5", (unsigned long long)*(volatile uint64_t *)peer.at);
	unshare_window(&w);
}

static void all(void)
{
	messages();
	one_sided();
}

int main(int argc, char **argv)
{
	MUST(argc == 2, "usage: ucp PUBLISHER");
	publisher = argv[1];
	before_start = own_memory;
	return run("ucp", all, 0);
}
