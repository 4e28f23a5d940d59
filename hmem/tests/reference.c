/* What C makes of each atomic operation: reads (op, datatype, count, target, operand, compare) and
 * writes the targets, over and over. Built and fed by against_c.rs, with -fwrapv. */
#include <complex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN, MAX, SUM, PROD, LOR, LAND, BOR, BAND, LXOR, BXOR, READ, WRITE,
       CSWAP, CSWAP_NE, CSWAP_LE, CSWAP_LT, CSWAP_GE, CSWAP_GT, MSWAP };

#define ANY \
	case SUM: *d = *d + *s; break; \
	case PROD: *d = *d * *s; break; \
	case LOR: *d = *d || *s; break; \
	case LAND: *d = *d && *s; break; \
	case LXOR: *d = (*d && !*s) || (!*d && *s); break; \
	case READ: break; \
	case WRITE: *d = *s; break; \
	case CSWAP: if (sizeof *d <= 8 ? !memcmp(c, d, sizeof *d) : *c == *d) *d = *s; break; \
	case CSWAP_NE: if (*c != *d) *d = *s; break;
#define REAL \
	case MIN: if (*d > *s) *d = *s; break; \
	case MAX: if (*d < *s) *d = *s; break; \
	case CSWAP_LE: if (*c <= *d) *d = *s; break; \
	case CSWAP_LT: if (*c < *d) *d = *s; break; \
	case CSWAP_GE: if (*c >= *d) *d = *s; break; \
	case CSWAP_GT: if (*c > *d) *d = *s; break;
#define INT \
	case BOR: *d |= *s; break; \
	case BAND: *d &= *s; break; \
	case BXOR: *d ^= *s; break; \
	case MSWAP: *d = (*s & *c) | (*d & ~*c); break;

#define TYPE(name, type, cases) \
static size_t name(int op, uint32_t n, void *dst, const void *src, const void *cmp) { \
	type *d = dst; const type *s = src, *c = cmp; \
	for (uint32_t i = 0; dst && i < n; i++, d++, s++, c++) \
		switch (op) { cases default: abort(); } \
	return sizeof(type); \
}
TYPE(i8, int8_t, ANY REAL INT) TYPE(u8, uint8_t, ANY REAL INT)
TYPE(i16, int16_t, ANY REAL INT) TYPE(u16, uint16_t, ANY REAL INT)
TYPE(i32, int32_t, ANY REAL INT) TYPE(u32, uint32_t, ANY REAL INT)
TYPE(i64, int64_t, ANY REAL INT) TYPE(u64, uint64_t, ANY REAL INT)
TYPE(f32, float, ANY REAL) TYPE(f64, double, ANY REAL)
TYPE(c32, float complex, ANY) TYPE(c64, double complex, ANY)
TYPE(f80, long double, ANY REAL) TYPE(c80, long double complex, ANY)

static size_t (*const types[])(int, uint32_t, void *, const void *, const void *) = {
	i8, u8, i16, u16, i32, u32, i64, u64, f32, f64, c32, c64, f80, c80 };

int main(void)
{
	unsigned char head[2];
	uint32_t n;
	while (fread(head, 2, 1, stdin) && fread(&n, 4, 1, stdin)) {
		size_t len = n * types[head[1]](head[0], 0, NULL, NULL, NULL);
		char *b[3];
		for (int i = 0; i < 3; i++)
			if (!(b[i] = aligned_alloc(64, (len + 63) / 64 * 64)) || fread(b[i], 1, len, stdin) != len)
				return 1;
		types[head[1]](head[0], n, b[0], b[1], b[2]);
		if (fwrite(b[0], 1, len, stdout) != len)
			return 1;
		for (int i = 0; i < 3; i++)
			free(b[i]);
	}
	return 0;
}
