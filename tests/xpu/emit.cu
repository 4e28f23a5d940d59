/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One kernel for each function whose machine code ci/suite/xpu looks at, and for each function and scope that is to compile. */
#include "strait_xpu.cuh"
using namespace strait::xpu;

#define KERNEL extern "C" __global__ void

KERNEL emit_put_word_signal(window w, u64 word, u64 value) { put_word_signal(w, 0, word, value); }
KERNEL emit_put_8_weak(window w, const u64 *src, u64 value) { put_signal<scope::thread>(w, 0, src, 8, 8, value, weak); }
KERNEL emit_signal_weak(window w, u64 value) { w.mapped |= 16; signal<scope::thread>(w, 0, value, weak); }
KERNEL emit_packets(window w, const void *src, u64 n, u32 epoch) { put_packets<scope::warp>(w, 0, src, n, epoch); }
KERNEL emit_release(u64 *p, u64 v) { hw::store_release(p, v); }
KERNEL emit_copy_release(u64 *far, const u64 *near, u64 n, u64 *sig, u64 v)
{
	detail::copy_out<scope::block>(far, near, n);
	hw::sync<scope::block>();
	if (hw::rank<scope::block>() == 0)
		hw::store_release(sig, v);
}
KERNEL emit_mail(mailbox m, const void *src, u64 n, u64 v, int *rc) { *rc = mail_put<scope::warp>(m, 0, 0, src, n, 0, 0, v); }
KERNEL emit_command(ring r, strait_xpu_command c, int *rc) { *rc = post<scope::warp>(r, c); }
KERNEL emit_commands(ring r, const strait_xpu_command *c, int *rc) { *rc = post_each(r, c[threadIdx.x], true); }

KERNEL emit_warp_barrier(u64 *p) { p[0] = 1; hw::sync<scope::warp>(); p[1] = 2; }

template <scope S> __device__ int everything(window &w, mailbox &m, void *near, u64 *word, u32 *notes, u64 n, crc_stats *stats)
{
	int rc = put<S>(w, 0, near, n) | get<S>(w, near, 64, n) | signal<S>(w, 8, n) | put_signal<S>(w, 0, near, n, 64, n, add);
	fence<S>(w);
	rc |= flush<S>(w) | quiet<S>(w) | wait_until<S>(w.ctx, word, cmp::ge, n);
	u32 id = 0;
	rc |= notify<S>(w, 0, 3, 1) | put_notify<S>(w, 0, near, n, w, 0, 1, 1);
	rc |= notify_waitsome<S>(w.ctx, notes, 0, 100, &id);
	rc |= put_packets<S>(w, 0, near, n, 7) | take_packets<S>(w.ctx, near, word, n, 7);
	rc |= mail_put<S>(m, 0, 0, near, n, 0, 0, 1) | mail_wait<S>(m, word, cmp::ge, 1) | mail_quiet<S>(m);
	rc |= crc_check<S>(near, n, 5, crc_kind::zlib, 2, stats) | put_signal_crc<S>(w, 0, near, n, 8, 16, 1);
	rc |= wait_crc<S>(w.ctx, word, cmp::eq, 1, near, n, word, stats, crc_kind::castagnoli);
	return rc;
}

KERNEL compile_thread(window w, mailbox m, void *p, u64 *a, u32 *b, u64 n, crc_stats *s, int *rc)
{
	*rc = everything<scope::thread>(w, m, p, a, b, n, s);
}
KERNEL compile_warp(window w, mailbox m, void *p, u64 *a, u32 *b, u64 n, crc_stats *s, int *rc)
{
	*rc = everything<scope::warp>(w, m, p, a, b, n, s);
}
KERNEL compile_block(window w, mailbox m, void *p, u64 *a, u32 *b, u64 n, crc_stats *s, int *rc)
{
	*rc = everything<scope::block>(w, m, p, a, b, n, s);
}
KERNEL compile_words(window w, u64 *old, strait_xpu_queue *q, strait_xpu_counter *c, strait_xpu_completion *e, int *rc)
{
	u32 code, ticket;
	*rc = atomic_add(w, 0, 1) | atomic_fetch_add(w, 0, 1, old) | atomic_fetch_and(w, 0, 1, old) |
	      atomic_fetch_or(w, 0, 1, old) | atomic_fetch_xor(w, 0, 1, old) | atomic_swap(w, 0, 1, old) |
	      atomic_compare_swap(w, 0, 1, 2, old) | put_word(w, 8, 1) | get_word(w, old, 8) |
	      wait_word(w.ctx, (const pair64 *)old, cmp::eq, 1, old) | wait_queue(q, e) | wait_counter(c, 1) |
	      (int)last_error(w, &code, &ticket);
	add_counter(c, 1);
}
KERNEL compile_open(const strait_xpu_context *ctx, window *w, mailbox *m, int *rc)
{
	*rc = open(w, ctx, 1, 0) | open_mailbox(m, ctx, 1, 0, 0, 10);
}
KERNEL compile_gaspi(gpu_gaspi g, u32 *out, int *rc)
{
	u32 id = 0;
	*rc = gpu_gaspi_write(g, 0, 0, 1, 0, 0, 8, 0) | gpu_gaspi_write_notify(g, 0, 0, 1, 0, 0, 8, 1, 1, 0) |
	      gpu_gaspi_write_notify_warp(g, 0, 0, 1, 0, 0, 8, 1, 1, 0) | gpu_gaspi_notify(g, 0, 1, 1, 1, 0) |
	      gpu_gaspi_notify_waitsome(g, 0, 0, 8, &id, GPU_GASPI_BLOCK) |
	      gpu_gaspi_notify_waitsome_warp(g, 0, 0, 8, &id, GPU_GASPI_TEST) | gpu_gaspi_notify_reset(g, 0, id, out) |
	      gpu_gaspi_wait(g, 0, GPU_GASPI_BLOCK);
	gpu_gaspi_link l;
	*rc |= gpu_gaspi_link_open(&l, g, 0, 1, 0, 0) | gpu_gaspi_link_write_notify(l, 0, 0, 8, 1, 1) |
	       gpu_gaspi_link_waitsome(l, 0, 8, &id, GPU_GASPI_BLOCK) | gpu_gaspi_link_reset(l, id, out);
}
