/* Pseudo-random numbers that a seed determines.
 *
 * The n-th draw of a stream is a function of (seed, stream, n) alone.  There is no generator whose
 * state two processors could tear: they only have to agree on who is n-th.
 */
#ifndef UETEMU_RANDOM_H
#define UETEMU_RANDOM_H

#include "asic.h"

enum stream { STREAM_MARK = 1, STREAM_FAULT = 2, STREAM_HASH = 3, STREAM_KERNEL = 4 };

/* Every bit of the result depends on every bit of the argument (the finalizer of SplitMix64). */
static __always_inline __u64 mixed(__u64 x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

static __always_inline __u32 draw(__u64 seed, enum stream stream, __u64 n)
{
	return mixed(mixed(seed + stream) + n) >> 32;
}

/* The next draw of a stream that several processors share. */
static __always_inline __u32 next_draw(__u64 seed, enum stream stream, __u64 *draws)
{
	return draw(seed, stream, __sync_fetch_and_add(draws, 1));
}

#endif
