/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the strait provider tells of its links, and of the one that a peer has.
 *
 *     struct fi_strait_ops_link *ops;
 *     char text[1024];
 *     fi_open_ops(&ep->fid, FI_STRAIT_LINK_OPS, 0, (void **) &ops, NULL);
 *     if (ops->path(ep, peer, text, sizeof(text)) >= 0)
 *         puts(text);
 *
 * The name is known to endpoints and to domains, and leads to the same structure. That only grows at its end; `size` says how much
 * of it the provider has: a call that begins at or behind `size` is not there.
 *
 * Both calls write text as snprintf(3) does: at most `len` bytes with the NUL at their end. They return the bytes of the whole
 * text without the NUL, or a negative error. A `buf` of NULL with a `len` of 0 asks for the length alone; with another `len` it is
 * -FI_EINVAL.
 */
#ifndef STRAIT_LINK_H
#define STRAIT_LINK_H

#include <stddef.h>
#include <stdint.h>

#define FI_STRAIT_LINK_OPS "strait_link_v1"

struct fid_domain;
struct fid_ep;

struct fi_strait_ops_link {
	size_t size;
	/* One line on the path to a peer, of now: it begins with the name of the link, or with "no link"; then what the
	 * path is like, why it is that one, and for each other link "not NAME: " and what speaks against it. The log has
	 * the same line once the path is used. The words are for people and may change.
	 * Nothing is sent to the peer. Until it has answered, a peer whose address is this host's has shared memory; where
	 * nothing answers by that, the first operation gives it the next link.
	 * `peer` is an fi_addr_t of the address vector that the endpoint is bound to; any other is -FI_EADDRNOTAVAIL. An
	 * endpoint that is not enabled is -FI_EOPBADSTATE, what is no endpoint of strait's -FI_EINVAL. */
	int (*path)(struct fid_ep *ep, uint64_t peer, char *buf, size_t len);
	/* The links that an endpoint has that is opened in the domain now: a line for each, which ends in a newline: its
	 * name, "yes" or "no", and what it offers or why it is not to be had, with a blank between them. An endpoint is
	 * opened and closed for that, so that ports of its own are named. A line of a link that no endpoint can be
	 * opened without, and that failed, is alone. What is no domain of strait's is -FI_EINVAL. */
	int (*links)(struct fid_domain *domain, char *buf, size_t len);
};

#endif
