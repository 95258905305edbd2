/* Time and queues of a fabric whose clock is virtual (compiled with VIRTUAL_TIME).
 *
 * An engine outside the kernel holds the frames that wait, and the clock.  It maps the tables here:
 * before it lets a frame into a switch it writes the time, and as frames leave ports it takes their
 * octets off the depths.  The program adds what it admits and accounts for every transport frame.
 * emulator/asic/virtual_state.py is the other side.
 *
 * Frames of other kinds pass in the kernel, at no virtual time.  They must leave no trace in what a
 * run reports, as they come by the host's clock: no queue, count or seeded sequence knows them.
 */
#ifndef UETEMU_VIRTUAL_H
#define UETEMU_VIRTUAL_H

#include <linux/pkt_cls.h>
#include "asic.h"

struct virtual_switch {
	__u64 now;     /* ns of fabric time */
	__u64 passed;  /* transport frames that left by a port */
	__u64 dropped; /* transport frames that went no further, for whatever reason */
	__u64 unused;
};

struct virtual_port {
	__u64 depth[QUEUES]; /* octets on the wire; the engine takes away what has left */
	__u64 overtakes;     /* frames that the fault of reordering has moved ahead */
	__u64 peak;	     /* deepest low queue since whoever samples it set it back */
	__u64 kernel_draws;  /* faults drawn for frames that pass in the kernel */
	__u64 kernel_lost;   /* such frames that faults of the cable took */
	/* Of marks on departure, which the engine sets: draws, and packets by class. */
	__u64 departure_draws;
	__u64 departures_marked[CLASSES];
};

/* The memory that all ports of a switch share (pool.h).  Octets are those on the wire. */
struct virtual_pool {
	__u64 size;	   /* beside what is reserved and headroom; 0: ports share nothing */
	__u64 reserved;	   /* of each queue, beside `size` */
	__u64 headroom;	   /* of all ports together, beside `size` */
	__u64 used;	   /* of `size`; the engine takes away what has left */
	__u64 most;	   /* that was used */
	__u64 in_headroom; /* of `headroom`; the engine's, too */
	__u64 most_in_headroom;
	__u64 unused;
};

#if VIRTUAL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, MAPPED);
	__uint(max_entries, SWITCHES);
	__type(key, __u32);
	__type(value, struct virtual_pool);
} virtual_pools SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, MAPPED);
	__uint(max_entries, SWITCHES);
	__type(key, __u32);
	__type(value, struct virtual_switch);
} virtual_switches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, MAPPED);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct virtual_port);
} virtual_ports SEC(".maps");

static __always_inline struct virtual_switch *virtual_switch_of(const struct port_settings *rules)
{
	__u32 number = rules->switch_number;

	return bpf_map_lookup_elem(&virtual_switches, &number);
}

static __always_inline struct virtual_pool *pool_of(const struct port_settings *rules)
{
	__u32 number = rules->switch_number;
	struct virtual_pool *pool = bpf_map_lookup_elem(&virtual_pools, &number);

	return pool && pool->size ? pool : 0;
}

static __always_inline struct virtual_port *virtual_port_of(__u32 index)
{
	return bpf_map_lookup_elem(&virtual_ports, &index);
}

#else

static __always_inline struct virtual_switch *virtual_switch_of(const struct port_settings *rules)
{
	return 0;
}

static __always_inline struct virtual_pool *pool_of(const struct port_settings *rules)
{
	return 0;
}

static __always_inline struct virtual_port *virtual_port_of(__u32 index)
{
	return 0;
}

#endif

/* The time at the switch of a port: ns of the host, or of the virtual clock. */
static __always_inline __u64 now_at(const struct port_settings *rules)
{
	struct virtual_switch *mapped;

	if (!VIRTUAL)
		return bpf_ktime_get_ns();
	mapped = virtual_switch_of(rules);
	return mapped ? mapped->now : 0;
}

/* A transport frame leaves by a port of the switch. */
static __always_inline int passed(const struct port_settings *rules)
{
	struct virtual_switch *mapped = virtual_switch_of(rules);

	if (mapped)
		mapped->passed++;
	return TC_ACT_UNSPEC;
}

/* A transport frame goes no further.  Not TC_ACT_SHOT: a socket that sends through a port of its
 * own would see the loss. */
static __always_inline int swallowed(const struct port_settings *rules)
{
	struct virtual_switch *mapped = virtual_switch_of(rules);

	if (mapped)
		mapped->dropped++;
	return TC_ACT_STOLEN;
}

#endif
