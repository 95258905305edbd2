/*
 * The switch ASIC: what a data-center switch does to a packet and Linux does not.
 *
 *   arrival    asic_ingress   the frame has left the queue at the other end (queue.h),
 *      |                      load balancing (balance.h)
 *      |
 *   the kernel's bridge or routing
 *      |
 *   departure  asic_egress    buffers of the port of arrival (pfc.h, pool.h),
 *      |                      queues: admission, ECN, trimming (queue.h, packet.h),
 *      |                      faults of the cable (faults.h), priority
 *      v
 *     HTB      holds the frame for as long as the link takes
 *
 * Both programs serve all ports of a lab; the maps are keyed by the interface index of the port.
 * A third, asic_forget, is on no port: it is run where a cable is pulled.
 */
#include "balance.h"
#include "faults.h"
#include "packet.h"
#include "pfc.h"
#include "queue.h"
#include "transport.h"
#include "virtual.h"

/* A frame that the program sends to its own port once more carries in its mark what was done. */
#define MARK_TRIMMED 0x75655401
#define MARK_DUPLICATE 0x75655402
/* Those that the emulator itself sends by a port: a MAC control frame, a knock at its queue. */
#define MARK_OWN 0x75655403
#define MARK_KICK 0x75655404

/* What the kernel asks for; some of its functions are for GPL-compatible programs only. */
char _license[] SEC("license") = "Dual BSD/GPL";

static __always_inline void count_drop(struct port_state *port, __u32 class_number,
				       enum drop_reason reason)
{
	__sync_fetch_and_add(&port->classes[class_number].drops[reason], 1);
}

/* What a black hole takes, or a cable without carrier. */
static __always_inline void count_swallowed(struct port_state *port, __u32 class_number,
					    const struct port_settings *rules)
{
	if (rules->faults.black_hole & WITHOUT_CARRIER)
		count_drop(port, class_number, DROP_LINK_DOWN);
	else
		count_drop(port, class_number, DROP_BLACK_HOLE);
}

static __always_inline __u32 class_of(const struct port_settings *rules,
				      const struct packet *packet)
{
	__u32 class_number;

	if (!packet->version)
		return CLASS_OTHER;
	class_number = rules->class_of[dscp(packet) & (CODE_POINTS - 1)];
	return class_number < CLASSES ? class_number : CLASS_UNTRIMMED;
}

/* The kernel has taken down the frame's length before this program runs, and HTB would charge the
 * link for octets that are gone: so a trimmed frame starts anew at the same port. */
static __always_inline int trim_and_return(struct __sk_buff *skb, const struct packet *packet,
					   struct port_state *port,
					   const struct port_settings *rules, __u32 class_number)
{
	if (trim(skb, packet, rules->trim_payload, rules->trimmed_dscp)) {
		count_drop(port, class_number, DROP_FAILURE);
		return swallowed(rules);
	}
	skb->mark = MARK_TRIMMED;
	return bpf_redirect(skb->ifindex, 0);
}

enum lossless { LOSSY, LOSSLESS, DROPPING };

/* Whether a frame of this class that leaves by port `index` counts in the buffer it came in by. */
static __always_inline __u32 is_lossless(__u32 index, const struct port_settings *rules,
					 __u32 class_number)
{
	struct pause_rules *pauses = pausing(index);

	if (!pauses || rules->classes[class_number].queue != QUEUE_LOW)
		return LOSSY;
	return pauses->dropping ? DROPPING : LOSSLESS;
}

/* Virtual clock: a frame that is not the engine's, at no time and in no queue. */
static __always_inline int pass_in_kernel(struct __sk_buff *skb, const struct port_settings *rules,
					  struct virtual_port *mapped, __u32 direction)
{
	if (!((rules->faults.black_hole | rules->faults.enabled) & direction))
		return TC_ACT_UNSPEC;
	if (!(rules->faults.black_hole & direction) && !apply_faults_in_kernel(skb, mapped, rules))
		return TC_ACT_UNSPEC;
	__sync_fetch_and_add(&mapped->kernel_lost, 1);
	return TC_ACT_STOLEN;
}

SEC("tc")
int asic_egress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex, pass = skb->mark, class_number;
	struct port_settings *rules = bpf_map_lookup_elem(&settings, &index);
	struct port_state *port = bpf_map_lookup_elem(&ports, &index);
	struct virtual_port *mapped = virtual_port_of(index);
	struct virtual_pool *pool;
	struct packet packet;
	__u32 origin = skb->tc_index, lossless;
	__u64 octets, now;
	int can_trim;

	if (!rules || !port || !rules->rate || pass == MARK_KICK || (VIRTUAL && !mapped))
		return TC_ACT_UNSPEC;
	if (VIRTUAL && !is_transport(skb, rules->native_protocol))
		return pass_in_kernel(skb, rules, mapped, FAULTS_DEPARTURES);
	if (pass == MARK_OWN)
		return rules->faults.black_hole & FAULTS_DEPARTURES ? swallowed(rules) : TC_ACT_UNSPEC;
	if (pass == MARK_TRIMMED || pass == MARK_DUPLICATE)
		skb->mark = 0;
	parse(skb, &packet);
	class_number = class_of(rules, &packet);
	if (rules->faults.black_hole & FAULTS_DEPARTURES) {
		count_swallowed(port, class_number, rules);
		return swallowed(rules);
	}
	can_trim = packet.payload > rules->trim_payload && pass != MARK_TRIMMED;
	octets = octets_on_wire(skb);
	lossless = is_lossless(index, rules, class_number);
	pool = pool_of(rules);
	if (lossless == DROPPING) {
		count_drop(port, class_number, DROP_WATCHDOG);
		return swallowed(rules);
	}
	if (lossless && !fits(origin, pool, octets)) {
		count_drop(port, class_number, DROP_HEADROOM);
		return swallowed(rules);
	}
	if (!lossless)
		skb->tc_index = 0; /* nothing to be given back */
	now = now_at(rules);
	switch (admit(port, mapped, pool, rules, class_number, octets, can_mark(&packet),
		      can_trim, rules->measured ? pause_end(index) : 0, now)) {
	case TO_TRIM:
		return trim_and_return(skb, &packet, port, rules, class_number);
	case REFUSED:
		return swallowed(rules);
	case MARKED:
		/* Octets that others share (a tap, the sender's copy) cannot be marked. */
		bpf_skb_pull_data(skb, ETH_HLEN + packet.header);
		bpf_skb_ecn_set_ce(skb);
		break;
	case ADMITTED:
		break;
	}
	if (lossless)
		hold(index, origin, pool, octets);
	skb->priority = rules->classes[class_number].priority;
	if (!rules->faults.enabled || pass == MARK_DUPLICATE)
		return passed(rules);
	switch (apply_faults(skb, &packet, port, mapped, rules, class_number)) {
	case LOST:
	case LOST_IN_BURST:
		__sync_fetch_and_add(&port->classes[class_number].lost, octets);
		take_back(port, mapped, pool, rules, class_number, octets, now);
		if (lossless)
			leave(index, origin, pool, octets);
		return swallowed(rules);
	case DUPLICATED:
		skb->mark = MARK_DUPLICATE; /* the copy waits in the queue like any other frame */
		bpf_clone_redirect(skb, index, 0);
		skb->mark = 0;
		break;
	case NO_FAULT:
		break;
	}
	return passed(rules);
}

/* The frame has come over the cable: it is no longer in the queue of the port at the other end. */
static __always_inline void leave_peer(struct __sk_buff *skb, const struct packet *packet,
				       __u32 peer)
{
	struct port_settings *rules = bpf_map_lookup_elem(&settings, &peer);
	struct port_state *port = bpf_map_lookup_elem(&ports, &peer);

	if (rules && port && rules->measured)
		depart(port, rules, class_of(rules, packet), octets_on_wire(skb),
		       bpf_ktime_get_ns());
}

/* Whether the cable takes what has come over it, which counts as lost at this port. */
static __always_inline int lost_on_arrival(struct __sk_buff *skb, struct port_state *port,
					   const struct port_settings *rules)
{
	struct packet packet;
	enum fault fault;

	if (!((rules->faults.black_hole | rules->faults.enabled) & FAULTS_ARRIVALS))
		return 0;
	parse(skb, &packet);
	if (rules->faults.black_hole & FAULTS_ARRIVALS) {
		count_swallowed(port, class_of(rules, &packet), rules);
		return 1;
	}
	fault = apply_faults(skb, &packet, port, 0, rules, class_of(rules, &packet));
	return fault == LOST || fault == LOST_IN_BURST;
}

/* Virtual clock: a frame that is not the engine's takes the hop of its flow, whatever others do. */
static __always_inline int arrive_in_kernel(struct __sk_buff *skb,
					    const struct port_settings *rules,
					    struct virtual_port *mapped)
{
	struct packet packet;
	struct flow flow;

	if (skb->protocol == bpf_htons(ETH_P_MAC_CONTROL) && pausing(skb->ifindex))
		return swallowed(rules);
	parse(skb, &packet);
	if (rules->balancing != BALANCE_KERNEL && packet.version &&
	    !flow_of(skb, &packet, rules, &flow))
		bpf_set_hash(skb, flow.hash >> 32);
	return pass_in_kernel(skb, rules, mapped, FAULTS_ARRIVALS);
}

SEC("tc")
int asic_ingress(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex;
	struct port_settings *rules = bpf_map_lookup_elem(&settings, &index);
	struct port_state *port = bpf_map_lookup_elem(&ports, &index);
	struct virtual_port *mapped = virtual_port_of(index);
	__u32 origin = skb->tc_index;
	struct packet packet;

	if (!rules || !port || (VIRTUAL && !mapped))
		return TC_ACT_UNSPEC;
	if (VIRTUAL && !is_transport(skb, rules->native_protocol))
		return arrive_in_kernel(skb, rules, mapped);
	if (lost_on_arrival(skb, port, rules))
		return swallowed(rules);
	if (pausing(index)) {
		if (skb->protocol == bpf_htons(ETH_P_MAC_CONTROL)) {
			take_control(skb, index);
			return swallowed(rules);
		}
		if (origin && !VIRTUAL)
			leave(rules->peer, origin, 0, octets_on_wire(skb));
		skb->tc_index = index;
	}
	if (rules->balancing == BALANCE_KERNEL && !rules->peer)
		return TC_ACT_UNSPEC;
	parse(skb, &packet);
	if (rules->peer)
		leave_peer(skb, &packet, rules->peer);
	if (packet.version && rules->balancing != BALANCE_KERNEL)
		balance(skb, &packet, port, rules);
	return TC_ACT_UNSPEC;
}

/* Run by hand, on an Ethernet frame of two numbers: the port whose cable was pulled, and one that
 * frames came in by which wait there.  Returns how many octets of lossless buffer that frees. */
SEC("tc")
int asic_forget(struct __sk_buff *skb)
{
	struct waiting_key key;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &key, sizeof(key)))
		return 0;
	return forget(key.egress, key.origin);
}
