/* A pool of packet memory that all ports of a switch share, with dynamic thresholds (Choudhury and
 * Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
 *
 * Each octet counts once: one of a lossless class at the port that it came in by (pfc.h), any other
 * in its egress queue (queue.h).  What is reserved for a queue or a port comes first, and beyond it
 * either takes at most alpha times what is free.  Headroom is memory of its own.
 */
#ifndef UETEMU_POOL_H
#define UETEMU_POOL_H

#include "asic.h"
#include "virtual.h"

/* Of `octets` those beyond the first `own`. */
static __always_inline __u64 beyond(__u64 octets, __u64 own)
{
	return octets > own ? octets - own : 0;
}

static __always_inline __u64 free_in(const struct virtual_pool *pool)
{
	return beyond(pool->size, pool->used);
}

/* How deep a queue with `own` octets may be that takes `alpha` times what is free. */
static __always_inline __u64 threshold(const struct virtual_pool *pool, __u64 own, __u64 alpha)
{
	return own + (free_in(pool) * alpha >> ALPHA_SHIFT);
}

static __always_inline void take(struct virtual_pool *pool, __u64 octets)
{
	pool->used += octets;
	if (pool->used > pool->most)
		pool->most = pool->used;
}

static __always_inline void take_headroom(struct virtual_pool *pool, __u64 octets)
{
	pool->in_headroom += octets;
	if (pool->in_headroom > pool->most_in_headroom)
		pool->most_in_headroom = pool->in_headroom;
}

#endif
