/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The multi matrix-vector product of the seed's slide 42, with GASPI's names: rank 0 sends batches of vectors, rank 1
 * multiplies each with a matrix and sends the products back. */

/* Rank 0 in one launch: `rounds` batches, `vectors` each. Block b has its share of a batch, its own notification, and its own answers. */
KERNEL matvec_client(const strait_xpu_context *ctx, u64 vectors, u64 rounds, u64 *out)
{
	const gpu_gaspi g = {ctx, 1, 4 * BLOCKS_MOST};
	const u64 share = (vectors + gridDim.x - 1) / gridDim.x, from = share * blockIdx.x;
	const u64 mine = from >= vectors ? 0 : vectors - from < share ? vectors - from : share, bytes = 4 * VECTOR * mine;
	int rc = GPU_GASPI_SUCCESS;
	const u64 begin = hw::now_ns();
	for (u64 i = 0; i < rounds && rc == GPU_GASPI_SUCCESS && mine; i++) {
		u32 id = 0, old = 0;
		rc = gpu_gaspi_write_notify(g, 2, 4 * VECTOR * from, 1, 2, 4 * VECTOR * from, bytes, blockIdx.x, (u32)i + 1, 0);
		if (rc == GPU_GASPI_SUCCESS)
			rc = gpu_gaspi_notify_waitsome(g, 3, blockIdx.x, 1, &id, GPU_GASPI_BLOCK);
		__syncthreads();
		if (threadIdx.x == 0 && rc == GPU_GASPI_SUCCESS)
			gpu_gaspi_notify_reset(g, 3, id, &old);
		__syncthreads();
	}
	if (threadIdx.x == 0) {
		out[2 * blockIdx.x] = hw::now_ns() - begin;
		out[2 * blockIdx.x + 1] = (u64)(i64)rc;
	}
}

__device__ void multiply(const float *matrix, const float *in, float *to, u64 vectors)
{
	__shared__ float m[VECTOR][VECTOR + 1];
	for (unsigned i = threadIdx.x; i < VECTOR * VECTOR; i += blockDim.x)
		m[i / VECTOR][i % VECTOR] = matrix[i];
	__syncthreads();
	/* A warp has a vector at a time, a lane one row. */
	const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
	for (u64 v = threadIdx.x / 32; v < vectors; v += warps) {
		const float x = in[v * VECTOR + lane];
		float sum = 0;
		for (unsigned k = 0; k < VECTOR; k++)
			sum += m[lane][k] * __shfl_sync(0xffffffffu, x, (int)k);
		to[v * VECTOR + lane] = sum;
	}
	__syncthreads();
}

/* Rank 1 in one launch: waits, multiplies, answers. */
KERNEL matvec_server(const strait_xpu_context *ctx, const float *matrix, u64 vectors, u64 rounds, u64 *out)
{
	const gpu_gaspi g = {ctx, 1, 4 * BLOCKS_MOST};
	const u64 share = (vectors + gridDim.x - 1) / gridDim.x, from = share * blockIdx.x;
	const u64 mine = from >= vectors ? 0 : vectors - from < share ? vectors - from : share, bytes = 4 * VECTOR * mine;
	int rc = GPU_GASPI_SUCCESS;
	for (u64 i = 0; i < rounds && rc == GPU_GASPI_SUCCESS && mine; i++) {
		u32 id = 0, old = 0;
		rc = gpu_gaspi_notify_waitsome(g, 2, blockIdx.x, 1, &id, GPU_GASPI_BLOCK);
		__syncthreads();
		if (rc == GPU_GASPI_SUCCESS) {
			if (threadIdx.x == 0)
				gpu_gaspi_notify_reset(g, 2, id, &old);
			multiply(matrix, (const float *)own(ctx, 2, 4 * VECTOR * from), (float *)own(ctx, 3, 4 * VECTOR * from), mine);
			rc = gpu_gaspi_write_notify(g, 3, 4 * VECTOR * from, 0, 3, 4 * VECTOR * from, bytes, blockIdx.x, (u32)i + 1, 0);
		}
		__syncthreads();
	}
	if (threadIdx.x == 0)
		out[blockIdx.x] = (u64)(i64)rc;
}

/* The same by the CPU: one launch a batch, between copies that the host starts. */
KERNEL matvec_kernel(const float *matrix, const float *in, float *to, u64 vectors)
{
	const u64 share = (vectors + gridDim.x - 1) / gridDim.x, from = share * blockIdx.x;
	const u64 mine = from >= vectors ? 0 : vectors - from < share ? vectors - from : share;
	multiply(matrix, in + from * VECTOR, to + from * VECTOR, mine);
}
