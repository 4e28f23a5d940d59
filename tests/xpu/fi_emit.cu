/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Every function of fi_xpu(3), for the compiler: each is called once. */
#include "strait_fi_xpu_device.cuh"

#define KERNEL extern "C" __global__ void

KERNEL compile_fi(fid_xpu_ep ep, fid_xpu_cq cq, fid_xpu_cntr cntr, void *p, strait_xpu_u64 n, int g, long long *rc)
{
	*rc = fi_xpu_write(&ep, p, n, p, n, p, n, n, p, n, g) | fi_xpu_read(&ep, p, n, p, p, n, n, p, n, g) |
	      fi_xpu_send(&ep, p, n, p, n, p, p, n, g) | fi_xpu_recv(&ep, p, n, p, p, p, n, g) |
	      fi_xpu_tsend(&ep, p, n, p, n, p, n, p, n, g) | fi_xpu_trecv(&ep, p, n, p, p, n, n, p, n, g) |
	      fi_xpu_atomic(&ep, p, n, p, p, n, n, 7, 2, p, n, g) | fi_xpu_fetch_atomic(&ep, p, n, p, p, p, p, n, n, 7, 2, p, n, g) |
	      fi_xpu_compare_atomic(&ep, p, n, p, p, p, p, p, p, n, n, 7, 12, p, n, g);
	fi_xpu_cntr_wait(&cntr, n, -1, g);
	*rc |= (long long)(fi_xpu_cntr_read(&cntr, g) + fi_xpu_cntr_readerr(&cntr, g)) | fi_xpu_cntr_add(&cntr, n, g) | fi_xpu_cntr_set(&cntr, n, g) |
	       fi_xpu_cntr_adderr(&cntr, n, g) | fi_xpu_cntr_seterr(&cntr, n, g) | fi_xpu_cq_read(&cq, p, n, g) | fi_xpu_cq_readfrom(&cq, p, n, p, g) |
	       fi_xpu_cq_readerr(&cq, p, n, g) | fi_xpu_cq_sread(&cq, p, n, 1, g) | fi_xpu_cq_sreadfrom(&cq, p, n, p, 1, g);
}
