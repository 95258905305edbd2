/* The egress queues of a port: octets that are admitted, and a link that drains them.
 *
 * The kernel's own queue (HTB, below) holds the frames and lets them go in time, but tells nobody
 * its depth.  There are two ways to know:
 *
 * - computed: what was there, less what the link has carried since.  Queues share the link in
 *   strict priority, as the classes of the HTB do, but for what the low one owns: so much of the
 *   link is its own whatever waits above it.  The link is an ideal one.
 * - measured: a frame that arrives at the other end of the cable has left the queue.  Where the
 *   kernel's timers are late and HTB falls behind its rate, this follows it.
 *
 * With a virtual clock neither is needed: who holds the frames keeps the depths (virtual.h).
 */
#ifndef UETEMU_QUEUE_H
#define UETEMU_QUEUE_H

#include "asic.h"
#include "pool.h"
#include "random.h"
#include "virtual.h"

#define LONGEST_IDLE (1ULL << 36) /* ns; times the highest rate it still fits 64 bits */

#define LOST_AFTER 1000000000ULL /* ns without a departure that the link cannot account for */

enum verdict { ADMITTED, MARKED, TO_TRIM, REFUSED };

/* The queue of a class.  The number is hidden from the compiler once it is known to be small: it
 * would keep a copy from before the comparison, of which the verifier of Linux 6.1 knows nothing. */
static __always_inline __u32 queue_number(const struct port_settings *rules, __u32 class_number)
{
	__u32 number = rules->classes[class_number].queue;

	if (number >= QUEUES)
		number = QUEUE_LOW;
	barrier_var(number);
	return number;
}

/* Take from the queues what the link has carried up to `now`.  The caller holds the lock. */
static __always_inline void drain(struct port_state *port, const struct port_settings *rules,
				  __u64 now)
{
	struct queue *low = &port->queues[QUEUE_LOW];
	__u64 idle, served, owned, take;
	int i;

	if (now <= port->drained_at) /* another processor read the clock later */
		return;
	idle = now - port->drained_at;
	if (idle > LONGEST_IDLE)
		idle = LONGEST_IDLE;
	port->drained_at = now;
	served = idle * rules->rate + port->credit;
	port->credit = served & ((1 << RATE_SHIFT) - 1);
	served >>= RATE_SHIFT;
	owned = served * rules->low_share + port->low_credit;
	port->low_credit = owned & ((1 << SHARE_SHIFT) - 1);
	owned >>= SHARE_SHIFT; /* at most `served`, as the share is less than 1 */
	take = low->depth < owned ? low->depth : owned;
	low->depth -= take;
	served -= take;
#pragma unroll
	for (i = 0; i < QUEUES; i++) {
		take = port->queues[i].depth < served ? port->queues[i].depth : served;
		port->queues[i].depth -= take;
		served -= take;
	}
	if (served) /* an idle link does not save up */
		port->credit = 0;
}

/* RED on the depth that a packet finds: never up to Kmin, always from Kmax on, between them with a
 * probability that grows linearly up to Pmax.  Without the usual average: a data-center switch
 * marks by the depth of this moment. */
static __always_inline int to_mark(const struct class_settings *class, __u64 depth, __u64 seed,
				   __u64 *draws)
{
	__u64 chance;

	if (!class->mark_all || depth <= class->mark_from)
		return 0;
	if (depth >= class->mark_all)
		return 1;
	chance = (depth - class->mark_from) * class->mark_slope >> SLOPE_SHIFT;
	return draw(seed, STREAM_MARK, (*draws)++) < chance;
}

static __always_inline __u64 octets_in(const struct port_state *port)
{
	__u64 depth = 0;
	int i;

#pragma unroll
	for (i = 0; i < QUEUES; i++)
		depth += port->queues[i].depth;
	return depth;
}

/* A frame that got lost below (the kernel's buffers were full) never arrives.  When the link could
 * have carried everything long ago, nothing is there; while it is paused it carries nothing.  The
 * caller holds the lock. */
static __always_inline void forget_lost(struct port_state *port, __u64 rate, __u64 paused_until,
					__u64 now)
{
	__u64 idle, since = port->drained_at, depth = octets_in(port);
	int i;

	if (since < paused_until)
		since = paused_until;

	if (!depth) {
		port->drained_at = now;
		return;
	}
	if (now < since + LOST_AFTER)
		return;
	idle = now - since - LOST_AFTER;
	if (idle > LONGEST_IDLE)
		idle = LONGEST_IDLE;
	if (idle * rate >> RATE_SHIFT <= depth)
		return;
#pragma unroll
	for (i = 0; i < QUEUES; i++)
		port->queues[i].depth = 0;
	port->drained_at = now;
}

/* Measured queues, reported from any processor: a frame of this class is no longer there. */
static __always_inline void depart(struct port_state *port, const struct port_settings *rules,
				   __u32 class_number, __u64 octets, __u64 now)
{
	struct queue *queue = &port->queues[queue_number(rules, class_number)];

	bpf_spin_lock(&port->lock);
	queue->depth -= queue->depth < octets ? queue->depth : octets;
	port->drained_at = now;
	bpf_spin_unlock(&port->lock);
}

/* Measured queues, and those of a virtual clock: a frame admitted just now is not there after all. */
static __always_inline void take_back(struct port_state *port, struct virtual_port *mapped,
				      struct virtual_pool *pool, const struct port_settings *rules,
				      __u32 class_number, __u64 octets, __u64 now)
{
	__u32 number = queue_number(rules, class_number);
	__u64 depth;

	if (mapped) {
		depth = mapped->depth[number];
		if (pool && rules->classes[class_number].alpha)
			pool->used -= beyond(depth, pool->reserved) -
				      beyond(depth - octets, pool->reserved);
		mapped->depth[number] = depth - octets;
	}
	if (rules->measured)
		depart(port, rules, class_number, octets, now);
}

/* Whether the pool has no room for `shared` octets more of a queue, which is then `deeper`. */
static __always_inline int is_full(const struct virtual_pool *pool,
				   const struct class_settings *class, __u64 shared,
				   __u64 deeper)
{
	return shared > free_in(pool) || deeper > threshold(pool, pool->reserved, class->alpha);
}

static __always_inline enum verdict admit(struct port_state *port, struct virtual_port *mapped,
					  struct virtual_pool *pool, const struct port_settings *rules,
					  __u32 class_number, __u64 octets, int can_mark,
					  int can_trim, __u64 paused_until, __u64 now)
{
	const struct class_settings *class = &rules->classes[class_number];
	struct class_counters *counters = &port->classes[class_number];
	__u32 number = queue_number(rules, class_number);
	struct queue *queue = &port->queues[number];
	enum verdict verdict = ADMITTED;
	__u64 bin, depth, shared = 0;
	int full = 0;

	bpf_spin_lock(&port->lock);
	if (mapped)
		queue->depth = mapped->depth[number];
	else if (rules->measured)
		forget_lost(port, rules->rate, paused_until, now);
	else
		drain(port, rules, now);
	depth = queue->depth;
	bin = depth >> (rules->bin_shift & 63);
	if (bin > BINS - 1)
		bin = BINS - 1;
	queue->histogram[bin]++;
	if (pool && class->alpha) {
		shared = beyond(depth + octets, pool->reserved) - beyond(depth, pool->reserved);
		full = is_full(pool, class, shared, depth + octets);
	}
	if (can_trim && class->trim_above && (full || depth + octets > class->trim_above)) {
		counters->trimmed++;
		verdict = TO_TRIM;
	} else if (class->limit && depth + octets > class->limit) {
		counters->drops[DROP_TAIL]++;
		verdict = REFUSED;
	} else if (full) {
		counters->drops[DROP_POOL]++;
		verdict = REFUSED;
	} else {
		if (shared)
			take(pool, shared);
		depth += octets;
		if (can_mark && to_mark(class, queue->depth, rules->seed, &port->mark_draws)) {
			counters->marked++;
			verdict = MARKED;
		}
		queue->depth = depth;
		if (mapped)
			mapped->depth[number] = depth;
		if (mapped && number == QUEUE_LOW && depth > mapped->peak)
			mapped->peak = depth;
		if (depth > queue->deepest)
			queue->deepest = depth;
		counters->packets++;
		counters->bytes += octets;
	}
	bpf_spin_unlock(&port->lock);
	return verdict;
}

/* Octets that wait at a port at `now`, without touching it: another port wants to know. */
static __always_inline __u64 waiting(const struct port_state *port,
				     const struct virtual_port *mapped,
				     const struct port_settings *rules, __u64 now)
{
	__u64 depth = octets_in(port), idle = 0, served;

	if (mapped)
		return mapped->depth[QUEUE_HIGH] + mapped->depth[QUEUE_MEDIUM] +
		       mapped->depth[QUEUE_LOW];
	if (rules->measured)
		return depth;
	if (now > port->drained_at)
		idle = now - port->drained_at;
	if (idle > LONGEST_IDLE)
		idle = LONGEST_IDLE;
	served = idle * rules->rate >> RATE_SHIFT;
	return depth > served ? depth - served : 0;
}

#endif
