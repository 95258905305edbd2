/* What the switch program and the emulator share: layouts of settings and counters.
 * emulator/dataplane/switch/bpf/layout.py says the same in Python; all integers are of host order.
 */
#ifndef UETEMU_ASIC_H
#define UETEMU_ASIC_H

#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Sizes of the tables, given to the compiler as macros: PORTS (one more than the highest interface
 * index, as the indices of a lab are unique), SWITCHES and PREFIXES (of all switches together). */
#ifndef PORTS
#define PORTS 64
#endif
#ifndef SWITCHES
#define SWITCHES 16
#endif
#ifndef PREFIXES
#define PREFIXES 1024
#endif

#ifdef VIRTUAL_TIME /* see virtual.h */
#define VIRTUAL 1
#define MAPPED BPF_F_MMAPABLE
#else
#define VIRTUAL 0
#define MAPPED 0
#endif

#define RATE_SHIFT 24 /* rates are octets per ns of host time, with so many binary places */
#define SLOPE_SHIFT 16
#define SHARE_SHIFT 16
#define BIT_ERROR_SHIFT 24
#define ALPHA_SHIFT 16
#define BINS 32
#define HOPS 64
#define FLOWLETS 1024 /* per switch */
#define CODE_POINTS 64

enum traffic_class {
	CLASS_CONTROL,
	CLASS_TRIMMED,
	CLASS_DATA,	      /* may be trimmed */
	CLASS_RETRANSMISSION, /* may be trimmed, at a threshold of its own */
	CLASS_UNTRIMMED,      /* everything else that is IP */
	CLASS_OTHER,	      /* not IP */
	CLASSES,
};

/* Served in this order, but for the share of the link that the low queue owns. */
enum queue_name { QUEUE_HIGH, QUEUE_MEDIUM, QUEUE_LOW, QUEUES };

enum drop_reason {
	DROP_TAIL,
	DROP_LOSS,
	DROP_BURST,
	DROP_BLACK_HOLE,
	DROP_FAILURE,
	DROP_HEADROOM,
	DROP_WATCHDOG,
	DROP_LINK_DOWN,
	DROP_POOL,
	DROP_REASONS
};

enum balancing {
	BALANCE_KERNEL,
	BALANCE_FLOW,
	BALANCE_FLOWLET,
	BALANCE_PACKET,
	BALANCE_ROUND_ROBIN,
	BALANCE_LEAST_LOADED
};

/* Octets are those on the wire: preamble, FCS and inter-packet gap included. */
struct class_settings {
	__u64 mark_from;  /* Kmin: no packet is marked up to this depth */
	__u64 mark_all;	  /* Kmax: every packet is marked from this depth on; 0 never marks */
	__u64 mark_slope; /* probability per octet between them, 2^-32 / 2^SLOPE_SHIFT */
	__u64 trim_above; /* a packet that would make the queue deeper is trimmed; 0 never trims */
	__u64 limit;	  /* one that would make it deeper is dropped; 0 has no limit */
	__u64 alpha;	  /* of what is free in the pool it takes so much, 2^-ALPHA_SHIFT; 0: no pool */
	__u32 priority;	  /* skb->priority, which is the class of the HTB below */
	__u32 queue;
};

/* Probabilities are of 2^32. */
struct fault_settings {
	__u64 loss;
	__u64 good_to_bad; /* Gilbert-Elliott: chance, at each packet, to enter the bad state */
	__u64 bad_to_good;
	__u64 loss_in_bad;
	__u64 corruption;
	__u64 duplication;
	__u64 reordering;
	__u64 bit_errors; /* chance of loss for each octet, 2^-32 / 2^BIT_ERROR_SHIFT */
	__u32 black_hole; /* what it acts on (FAULTS_...) */
	__u32 enabled;	  /* what any of the others act on */
};

#define FAULTS_DEPARTURES 1
#define FAULTS_ARRIVALS 2 /* too: the port at the other end of the cable has no settings */
#define WITHOUT_CARRIER 4 /* of a black hole: the cable is pulled, and losses count as such */

struct port_settings {
	__u64 rate;
	__u64 seed;
	struct class_settings classes[CLASSES];
	struct fault_settings faults;
	__u8 class_of[CODE_POINTS];
	__u32 trim_payload; /* octets of IP payload that trimming leaves */
	__u32 trimmed_dscp; /* what it writes; the code point for the last hop on such a port */
	__u32 bin_shift;    /* a bin of the depth histogram is 2^bin_shift octets wide */
	__u32 balancing;    /* of what arrives at this port */
	__u32 switch_number;
	__u32 native_protocol; /* IP protocol whose first octets are an entropy header */
	__u32 measured; /* depth is what has not arrived at the other end, not what time has left */
	__u32 peer;	/* the measuring port at the other end of the cable; 0 if it does not */
	__u64 low_share; /* of the link that the low queue owns, 2^-SHARE_SHIFT */
	__u64 switch_seed;
	__u64 flowlet_gap; /* ns of host time */
};

struct class_counters {
	__u64 packets; /* admitted to the queue */
	__u64 bytes;
	__u64 marked;
	__u64 trimmed;
	__u64 corrupted;
	__u64 duplicated;
	__u64 reordered; /* sent ahead of what waited */
	__u64 lost;	 /* octets of `bytes` that a fault of the cable took */
	__u64 drops[DROP_REASONS];
};

struct queue {
	__u64 depth;
	__u64 deepest;
	__u64 histogram[BINS]; /* depth that each arriving packet met */
};

struct port_state {
	struct bpf_spin_lock lock; /* of the queues and what admission counts */
	__u32 in_burst;		   /* Gilbert-Elliott: in the bad state */
	__u64 drained_at;	   /* ns, bpf_ktime_get_ns; if measured, of the last departure */
	__u64 credit;		   /* of an octet, in 2^-RATE_SHIFT */
	__u64 low_credit;	   /* of an octet of the low queue's share, in 2^-SHARE_SHIFT */
	__u64 mark_draws;
	__u64 fault_draws;
	__u64 hash_draws;
	struct queue queues[QUEUES];
	struct class_counters classes[CLASSES];
};

struct route_key {
	__u32 prefix_length; /* in bits, of what follows */
	__u32 switch_number;
	__u8 address[16]; /* IPv4 as ::ffff:a.b.c.d */
};

struct route {
	__u64 turn;
	__u32 hops;
	__u32 ports[HOPS]; /* egress ports, in the order of the kernel's multipath route */
	__u32 unused;
};

struct flowlet {
	__u64 last; /* ns */
	__u64 salt;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct port_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct port_state);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES);
	__type(key, struct route_key);
	__type(value, struct route);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, MAPPED);
	__uint(max_entries, SWITCHES *FLOWLETS);
	__type(key, __u32);
	__type(value, struct flowlet);
} flowlets SEC(".maps");

#endif
