/* Priority flow control (IEEE 802.1Q clause 36), the part that sees every frame.
 *
 * Buffers of a lossless switch are accounted by the port that a frame came in by: it counts there
 * from its admission until it has left its egress queue.  The frame itself carries the index of
 * that port, in tc_index: the kernel keeps it on the way through bridge or routing, through the
 * queues and over the cable, where whoever takes the frame gives the octets back.  What of it waits
 * at which egress port is known, too: if that loses its carrier nobody will take those frames.
 *
 * Here thresholds are noticed and MAC control frames taken off the wire; the agent that sends
 * pauses and applies them reads a ring (emulator/asic/pfc_agent.py).  With a virtual clock
 * (virtual.h) all that is the engine's, which maps the accounts: the program keeps frames out that
 * do not fit, and adds those that do.
 */
#ifndef UETEMU_PFC_H
#define UETEMU_PFC_H

#include "packet.h"
#include "pool.h"
#include "virtual.h"

#define ETH_P_MAC_CONTROL 0x8808
#define MAC_CONTROL_OCTETS 20 /* opcode, classes, eight times */
#define RING_OCTETS (1 << 18)
#define ORIGINS 64 /* that an egress port has frames of, on average */

enum pause_event_kind { PAUSE_XOFF, PAUSE_XON, PAUSE_FRAME };

/* Of one port.  Octets are those on the wire. */
struct pause_rules {
	__u64 xoff;    /* held octets above which the other end is to be paused */
	__u64 xon;     /* and down to which it may go on */
	__u64 ceiling; /* XOFF and headroom: nothing is taken beyond */
	__u64 alpha;   /* XOFF is so much of what is free in the pool higher, 2^-ALPHA_SHIFT */
	__u32 enabled;
	__u32 dropping; /* the watchdog: what wants to leave here is dropped */
	__u64 paused_until; /* ns, bpf_ktime_get_ns: the last pause of what leaves here */
};

struct pause_state {
	/* Octets of lossless frames that came in here and are still in the switch.  Below zero by
	 * those that were there already when counting began. */
	__s64 held;
	__s64 deepest;
	__u64 missed; /* events that found the ring full */
	__u64 freed;  /* octets of frames that were lost on their way out */
	__u32 asserted;
	__u32 unused;
	__s64 in_headroom; /* of `held`, where XOFF goes by the pool */
};

struct pause_event {
	__u64 time; /* ns, bpf_ktime_get_ns */
	__u32 port;
	__u32 kind;
	__u8 source[6];
	__u8 destination[6];
	__u8 control[MAC_CONTROL_OCTETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct pause_rules);
} pause_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, MAPPED);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct pause_state);
} pause_states SEC(".maps");

/* Octets that wait at port `egress` and count in the buffer of port `origin`. */
struct waiting_key {
	__u32 egress;
	__u32 origin;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PORTS *ORIGINS);
	__type(key, struct waiting_key);
	__type(value, __s64);
} waiting_octets SEC(".maps");

/* What the agent has counted, for whoever reads it. */
struct pause_counts {
	__u64 counts[12];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct pause_counts);
} pause_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_OCTETS);
} pause_events SEC(".maps");

static __always_inline struct pause_rules *pausing(__u32 index)
{
	struct pause_rules *rules = bpf_map_lookup_elem(&pause_rules, &index);

	return rules && rules->enabled ? rules : 0;
}

/* When the last pause of what leaves port `index` ended, in the future while it lasts. */
static __always_inline __u64 pause_end(__u32 index)
{
	struct pause_rules *rules = pausing(index);

	return rules ? rules->paused_until : 0;
}

static __always_inline void tell(struct pause_state *state, __u32 index, __u32 kind)
{
	struct pause_event *event = bpf_ringbuf_reserve(&pause_events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&state->missed, 1);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->time = bpf_ktime_get_ns();
	event->port = index;
	event->kind = kind;
	bpf_ringbuf_submit(event, 0);
}

/* Octets of the pool that a port takes which holds `held` of it, its reserved ones included. */
static __always_inline __u64 pooled(const struct pause_rules *rules, __s64 held)
{
	return beyond(held < 0 ? 0 : held, rules->xoff);
}

/* Whether `octets` more are below the threshold of the port that they came in by. */
static __always_inline int below_xoff(const struct pause_rules *rules,
				      const struct pause_state *state, const struct virtual_pool *pool,
				      __u64 octets)
{
	__s64 held = state->held - state->in_headroom;

	return pooled(rules, held + octets) - pooled(rules, held) <= free_in(pool) &&
	       held + (__s64)octets <= (__s64)threshold(pool, rules->xoff, rules->alpha);
}

/* Whether `octets` more still fit the buffer of the port that they came in by. */
static __always_inline int fits(__u32 origin, struct virtual_pool *pool, __u64 octets)
{
	struct pause_rules *rules = pausing(origin);
	struct pause_state *state = bpf_map_lookup_elem(&pause_states, &origin);

	if (!rules || !state)
		return 1;
	if (!pool || !rules->alpha)
		return state->held + (__s64)octets <= (__s64)rules->ceiling;
	return below_xoff(rules, state, pool, octets) ||
	       (state->in_headroom + octets <= rules->ceiling - rules->xoff &&
		pool->in_headroom + octets <= pool->headroom);
}

/* Take `octets`, which fit, from the pool, or above the threshold from the headroom. */
static __always_inline void hold_in_pool(const struct pause_rules *rules,
					 struct pause_state *state, struct virtual_pool *pool,
					 __u64 octets)
{
	__s64 held = state->held - state->in_headroom;

	if (below_xoff(rules, state, pool, octets)) {
		take(pool, pooled(rules, held + octets) - pooled(rules, held));
		return;
	}
	state->in_headroom += octets;
	take_headroom(pool, octets);
}

/* Give `octets` back, those of the headroom first; the caller takes them off what is held. */
static __always_inline void leave_pool(const struct pause_rules *rules, struct pause_state *state,
				       struct virtual_pool *pool, __u64 octets)
{
	__s64 held = state->held - state->in_headroom;
	__u64 above = state->in_headroom < octets ? state->in_headroom : octets;

	state->in_headroom -= above;
	pool->in_headroom -= above;
	pool->used -= pooled(rules, held) - pooled(rules, held - (octets - above));
}

/* A frame that came in by port `origin` waits at port `egress`. */
static __always_inline void hold(__u32 egress, __u32 origin, struct virtual_pool *pool,
				 __u64 octets)
{
	struct pause_rules *rules = pausing(origin);
	struct pause_state *state = bpf_map_lookup_elem(&pause_states, &origin);
	struct waiting_key key = {egress, origin};
	__s64 held, none = 0, *waiting;

	if (!rules || !state)
		return;
	if (VIRTUAL) {
		if (pool && rules->alpha)
			hold_in_pool(rules, state, pool, octets);
		state->held += octets;
		if (state->held > state->deepest)
			state->deepest = state->held;
		return;
	}
	waiting = bpf_map_lookup_elem(&waiting_octets, &key);
	if (!waiting) {
		bpf_map_update_elem(&waiting_octets, &key, &none, BPF_NOEXIST);
		waiting = bpf_map_lookup_elem(&waiting_octets, &key);
	}
	if (waiting)
		__sync_fetch_and_add(waiting, octets);
	held = __sync_fetch_and_add(&state->held, octets) + octets;
	if (held > state->deepest)
		state->deepest = held;
	if (held > (__s64)rules->xoff && !state->asserted &&
	    __sync_val_compare_and_swap(&state->asserted, 0, 1) == 0)
		tell(state, origin, PAUSE_XOFF);
}

static __always_inline void give_back(__u32 origin, struct virtual_pool *pool, __u64 octets)
{
	struct pause_rules *rules = pausing(origin);
	struct pause_state *state = bpf_map_lookup_elem(&pause_states, &origin);
	__s64 held;

	if (!rules || !state)
		return;
	if (pool && rules->alpha)
		leave_pool(rules, state, pool, octets);
	held = __sync_fetch_and_add(&state->held, -octets) - octets;
	if (VIRTUAL)
		return;
	if (held <= (__s64)rules->xon && state->asserted &&
	    __sync_val_compare_and_swap(&state->asserted, 1, 0) == 1)
		tell(state, origin, PAUSE_XON);
}

/* A frame has left port `egress`, for the other end of the cable or for nowhere.  If it was taken
 * for lost already, its octets are free. */
static __always_inline void leave(__u32 egress, __u32 origin, struct virtual_pool *pool,
				  __u64 octets)
{
	struct waiting_key key = {egress, origin};
	__s64 *waiting = VIRTUAL ? 0 : bpf_map_lookup_elem(&waiting_octets, &key);

	if (waiting && __sync_fetch_and_add(waiting, -octets) < (__s64)octets) {
		__sync_fetch_and_add(waiting, octets);
		return;
	}
	give_back(origin, pool, octets);
}

/* Nothing that came in by port `origin` and waits at port `egress` will arrive anywhere.  How many
 * octets that were. */
static __always_inline __u32 forget(__u32 egress, __u32 origin)
{
	struct waiting_key key = {egress, origin};
	__s64 *waiting = bpf_map_lookup_elem(&waiting_octets, &key);
	struct pause_state *state = bpf_map_lookup_elem(&pause_states, &origin);
	__s64 octets;

	if (!waiting || !state)
		return 0;
	octets = __sync_lock_test_and_set(waiting, 0);
	if (octets <= 0)
		return 0;
	__sync_fetch_and_add(&state->freed, octets);
	give_back(origin, 0, octets);
	return octets;
}

/* A MAC control frame has come in at port `index`; it goes no further, whatever it is. */
static __always_inline void take_control(struct __sk_buff *skb, __u32 index)
{
	struct pause_state *state = bpf_map_lookup_elem(&pause_states, &index);
	struct pause_event *event;

	if (VIRTUAL || !state)
		return;
	event = bpf_ringbuf_reserve(&pause_events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&state->missed, 1);
		return;
	}
	event->time = bpf_ktime_get_ns();
	event->port = index;
	event->kind = PAUSE_FRAME;
	if (bpf_skb_load_bytes(skb, 0, event->destination, 6) ||
	    bpf_skb_load_bytes(skb, 6, event->source, 6) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, event->control, MAC_CONTROL_OCTETS)) {
		bpf_ringbuf_discard(event, 0);
		return;
	}
	bpf_ringbuf_submit(event, 0);
}

#endif
