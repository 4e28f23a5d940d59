/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the provider reports of links by fi_open_ops(3), strait_link.h: of a peer before and after it was used, of one on another
 * host, and of what is no peer. The path to the one that was used, as it is reported in the end, is all of standard output. With
 * FI_STRAIT_LINKS=shm no link leads to another host.
 */
#include "fab.h"

#include <strait_link.h>

static struct fab a, b;
static struct fi_strait_ops_link *ops;

static const char *path(fi_addr_t to)
{
	static char text[4096];
	int len = ops->path(a.ep, to, NULL, 0);

	CHECK(len > 0 && (size_t)len < sizeof text, "a length of %d", len);
	CHECK(ops->path(a.ep, to, NULL, 5) == -FI_EINVAL, "5 bytes at NULL");
	memset(text, 'x', sizeof text);
	CHECK(ops->path(a.ep, to, text, 8) == len && strlen(text) == 7 && text[8] == 'x', "a part");
	CHECK(ops->path(a.ep, to, text, sizeof text) == len && strlen(text) == (size_t)len, "all");
	CHECK(!strchr(text, '\n'), "more than a line: %s", text);
	return text;
}

static void has(const char *text, const char *begin, const char *part)
{
	CHECK(!strncmp(text, begin, strlen(begin)) && strstr(text, part), "%s", text);
}

static void send_one(fi_addr_t to_b)
{
	static struct op in, out;
	static uint64_t sent = 7, got;

	POST(&b, &in, fi_trecv(b.ep, &got, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
	POST(&a, &out, fi_tsend(a.ep, &sent, 8, NULL, to_b, 1, &out));
	while (in.state == PENDING || out.state == PENDING) {
		fab_poll(&a);
		fab_poll(&b);
	}
	CHECK(in.state == DONE && out.state == DONE && got == sent, "the message");
}

int main(void)
{
	const char *links = getenv("FI_STRAIT_LINKS");
	int alone = links && !strcmp(links, "shm");
	struct fi_strait_ops_link *other;
	fi_addr_t to_b, far = FI_ADDR_UNSPEC;
	char text[4096];
	int len;

	fab_open(&a, (struct fab_options){0});
	fab_open(&b, (struct fab_options){0});
	to_b = fab_insert(&a, &b.name);
	/* No host has it: for documentation, RFC 5737. */
	CHECK(fi_av_insertsvc(a.av, "198.51.100.1", "7", &far, 0, NULL) == 1, "fi_av_insertsvc");

	CHECK(fi_open_ops(&a.ep->fid, "strait_link_v0", 0, (void **)&ops, NULL) == -FI_ENOSYS, "another name");
	CHECK(fi_open_ops(&a.ep->fid, FI_STRAIT_LINK_OPS, 1, (void **)&ops, NULL) == -FI_EINVAL, "a flag");
	OK(fi_open_ops(&a.ep->fid, FI_STRAIT_LINK_OPS, 0, (void **)&ops, NULL));
	OK(fi_open_ops(&a.domain->fid, FI_STRAIT_LINK_OPS, 0, (void **)&other, NULL));
	CHECK(other == ops && ops->size >= sizeof *ops, "the table");

	has(path(to_b), "shm ", "not connected; its address is this host's; not tcp: ");
	if (alone)
		has(path(far), "no link leads to its address", "; not tcp: FI_STRAIT_LINKS does not name it");
	else
		has(path(far), "tcp not connected", "; not shm: its address is not this host's");
	CHECK(ops->path(a.ep, to_b + 1000, NULL, 0) == -FI_EADDRNOTAVAIL, "no peer");
	CHECK(ops->path(a.ep, FI_ADDR_UNSPEC, NULL, 0) == -FI_EADDRNOTAVAIL, "FI_ADDR_UNSPEC");
	CHECK(ops->path(NULL, to_b, NULL, 0) == -FI_EINVAL, "NULL");
	CHECK(ops->path((struct fid_ep *)a.av, to_b, NULL, 0) == -FI_EINVAL, "an address vector");

	len = ops->links(a.domain, text, sizeof text);
	CHECK(len > 0 && (size_t)len == strlen(text) && text[len - 1] == '\n', "links: %d", len);
	has(text, "shm yes ", alone ? "\ntcp no " : "\ntcp yes ");
	CHECK(ops->links((struct fid_domain *)a.ep, NULL, 0) == -FI_EINVAL, "no domain");

	send_one(to_b);
	CHECK(!strstr(path(to_b), "not connected"), "%s", path(to_b));
	printf("%s\n", path(to_b));
	fab_close(&a);
	fab_close(&b);
	return 0;
}
