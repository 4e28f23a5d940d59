/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The multi matrix-vector product of the seed's slide 42, with GASPI's names: rank 0 sends batches of vectors, rank 1
 * multiplies each with a matrix and sends the products back. Batches take two notifications by turns, so that one is reset
 * while the next batch is on its way. */

/* A block's share of a batch: bytes, and from where. */
struct part {
	u64 count, at, bytes;
};

__device__ part share_of(u64 vectors)
{
	const u64 share = (vectors + gridDim.x - 1) / gridDim.x, from = share * blockIdx.x;
	const u64 count = from >= vectors ? 0 : vectors - from < share ? vectors - from : share;
	return part{count, 4 * VECTOR * from, 4 * VECTOR * count};
}

/* Rank 0 in one launch: `rounds` batches, `vectors` each. Block b has its share of a batch, its own notifications, and its own answers. */
KERNEL matvec_client(const strait_xpu_context *ctx, u64 vectors, u64 rounds, u64 *out)
{
	const gpu_gaspi g = {ctx, 1, 4 * BLOCKS_MOST};
	const part mine = share_of(vectors);
	gpu_gaspi_link there, back;
	int rc = gpu_gaspi_link_open(&there, g, 2, 1, 2, 0);
	if (rc == GPU_GASPI_SUCCESS)
		rc = gpu_gaspi_link_open(&back, g, 3, 1, 3, 0);
	const u64 begin = hw::now_ns();
	for (u64 i = 0; i < rounds && rc == GPU_GASPI_SUCCESS && mine.count; i++) {
		const u32 note = 2 * blockIdx.x + (u32)(i & 1);
		u32 id = 0, old = 0;
		rc = gpu_gaspi_link_write_notify(there, mine.at, mine.at, mine.bytes, note, (u32)i + 1);
		/* The answer before. */
		if (threadIdx.x == 0 && rc == GPU_GASPI_SUCCESS && i > 0)
			gpu_gaspi_link_reset(back, note ^ 1, &old);
		if (rc == GPU_GASPI_SUCCESS)
			rc = gpu_gaspi_link_waitsome(back, note, 1, &id, GPU_GASPI_BLOCK);
	}
	if (threadIdx.x == 0) {
		out[2 * blockIdx.x] = hw::now_ns() - begin;
		out[2 * blockIdx.x + 1] = (u64)(i64)rc;
	}
}

typedef float row_of_matrix[VECTOR + 1];

/* The matrix into shared memory. */
__device__ void load_matrix(row_of_matrix *m, const float *matrix)
{
	for (unsigned i = threadIdx.x; i < VECTOR * VECTOR; i += blockDim.x)
		m[i / VECTOR][i % VECTOR] = matrix[i];
	__syncthreads();
}

__device__ void multiply(const row_of_matrix *m, const float *in, float *to, u64 vectors)
{
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
	__shared__ row_of_matrix m[VECTOR];
	const gpu_gaspi g = {ctx, 1, 4 * BLOCKS_MOST};
	const part mine = share_of(vectors);
	gpu_gaspi_link there, back;
	int rc = gpu_gaspi_link_open(&there, g, 2, 0, 2, 0);
	if (rc == GPU_GASPI_SUCCESS)
		rc = gpu_gaspi_link_open(&back, g, 3, 0, 3, 0);
	load_matrix(m, matrix);
	const float *const in = (const float *)own(ctx, 2, mine.at);
	float *const to = (float *)own(ctx, 3, mine.at);
	for (u64 i = 0; i < rounds && rc == GPU_GASPI_SUCCESS && mine.count; i++) {
		const u32 note = 2 * blockIdx.x + (u32)(i & 1);
		u32 id = 0, old = 0;
		rc = gpu_gaspi_link_waitsome(there, note, 1, &id, GPU_GASPI_BLOCK);
		if (rc == GPU_GASPI_SUCCESS) {
			multiply(m, in, to, mine.count);
			rc = gpu_gaspi_link_write_notify(back, mine.at, mine.at, mine.bytes, note, (u32)i + 1);
		}
		if (threadIdx.x == 0 && rc == GPU_GASPI_SUCCESS)
			gpu_gaspi_link_reset(there, id, &old);
	}
	if (threadIdx.x == 0)
		out[blockIdx.x] = (u64)(i64)rc;
}

/* The same by the CPU: one launch a batch, between copies that the host starts. */
KERNEL matvec_kernel(const float *matrix, const float *in, float *to, u64 vectors)
{
	__shared__ row_of_matrix m[VECTOR];
	const part mine = share_of(vectors);
	load_matrix(m, matrix);
	multiply(m, in + mine.at / 4, to + mine.at / 4, mine.count);
}
