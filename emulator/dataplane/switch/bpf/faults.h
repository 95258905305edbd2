/* What can go wrong on the cable of a port.  Each kind draws once per packet, so that one kind
 * does not shift the sequence of another.
 */
#ifndef UETEMU_FAULTS_H
#define UETEMU_FAULTS_H

#include "packet.h"
#include "random.h"
#include "transport.h"
#include "virtual.h"

enum fault_stream {
	FAULT_LOSS,
	FAULT_STATE,
	FAULT_BURST,
	FAULT_CORRUPTION,
	FAULT_DUPLICATION,
	FAULT_BIT,
	FAULT_REORDERING,
	FAULT_STREAMS = 16 /* with room, lest a new one shifts all */
};

#define FCS_OCTETS 4

enum fault { NO_FAULT, LOST, LOST_IN_BURST, DUPLICATED };

static __always_inline __u32 fault_draw(__u64 seed, enum fault_stream kind, __u64 n)
{
	return draw(seed, STREAM_FAULT, n * FAULT_STREAMS + kind);
}

/* One bit of the IP payload, or of what follows the Ethernet header if it is not IP. */
static __always_inline int corrupt(struct __sk_buff *skb, const struct packet *packet, __u32 where)
{
	__u32 start = ETH_HLEN + packet->header;
	__u32 octets = skb->len - start;
	__u8 octet;

	if (!octets || start >= skb->len)
		return -1;
	start += (where >> 3) % octets;
	if (bpf_skb_load_bytes(skb, start, &octet, 1))
		return -1;
	octet ^= 1 << (where & 7);
	return bpf_skb_store_bytes(skb, start, &octet, 1, 0);
}

/* Gilbert (1960), Elliott (1963): a state that changes by chance, and loses packets while bad. */
static __always_inline int in_burst(struct port_state *port, const struct fault_settings *faults,
				    __u64 seed, __u64 n)
{
	__u32 chance = fault_draw(seed, FAULT_STATE, n);

	if (port->in_burst) {
		if (chance < faults->bad_to_good)
			port->in_burst = 0;
	} else if (chance < faults->good_to_bad) {
		port->in_burst = 1;
	}
	return port->in_burst;
}

/* Put the frame into the class of the HTB that is served before its own: it overtakes what waits
 * there.  It stays one of its own queue in the model, which knows neither of the order within a
 * queue: the class of a frame, whichever way it went, reports that it has arrived.  Where
 * the clock is virtual the engine puts the frame ahead, which it knows by the port's count. */
static __always_inline void overtake(struct __sk_buff *skb, const struct port_state *port,
				     struct virtual_port *mapped, const struct port_settings *rules,
				     __u32 class_number, struct class_counters *counters)
{
	if (rules->classes[class_number].queue != QUEUE_LOW)
		return;
	if (port->queues[QUEUE_LOW].depth <= octets_on_wire(skb)) /* there is nothing but itself */
		return;
	skb->priority = rules->classes[CLASS_CONTROL].priority;
	if (mapped)
		mapped->overtakes++;
	__sync_fetch_and_add(&counters->reordered, 1);
}

/* Chance of a frame to be lost: that of any frame, and bit errors, which find long ones. */
static __always_inline __u64 loss_chance(struct __sk_buff *skb, const struct fault_settings *faults)
{
	return faults->loss + ((skb->len + FCS_OCTETS) * faults->bit_errors >> BIT_ERROR_SHIFT);
}

static __always_inline enum fault apply_faults(struct __sk_buff *skb, const struct packet *packet,
					       struct port_state *port, struct virtual_port *mapped,
					       const struct port_settings *rules,
					       __u32 class_number)
{
	const struct fault_settings *faults = &rules->faults;
	struct class_counters *counters = &port->classes[class_number];
	__u64 n = __sync_fetch_and_add(&port->fault_draws, 1);

	if (in_burst(port, faults, rules->seed, n) &&
	    fault_draw(rules->seed, FAULT_BURST, n) < faults->loss_in_bad) {
		__sync_fetch_and_add(&counters->drops[DROP_BURST], 1);
		return LOST_IN_BURST;
	}
	if (fault_draw(rules->seed, FAULT_LOSS, n) < loss_chance(skb, faults)) {
		__sync_fetch_and_add(&counters->drops[DROP_LOSS], 1);
		return LOST;
	}
	if (fault_draw(rules->seed, FAULT_CORRUPTION, n) < faults->corruption &&
	    !corrupt(skb, packet, fault_draw(rules->seed, FAULT_BIT, n))) {
		if (VIRTUAL && !is_transport(skb, rules->native_protocol)) {
			/* no engine's any more, and the kernel would carry it by the host's clock */
			__sync_fetch_and_add(&counters->drops[DROP_LOSS], 1);
			return LOST;
		}
		__sync_fetch_and_add(&counters->corrupted, 1);
	}
	if (fault_draw(rules->seed, FAULT_REORDERING, n) < faults->reordering)
		overtake(skb, port, mapped, rules, class_number, counters);
	if (fault_draw(rules->seed, FAULT_DUPLICATION, n) < faults->duplication) {
		__sync_fetch_and_add(&counters->duplicated, 1);
		return DUPLICATED;
	}
	return NO_FAULT;
}

/* Virtual clock: whether the cable takes a frame that is not the engine's.  Such frames come by the
 * host's clock and have a sequence of their own, lest they shift the one that a run repeats.  Of
 * bursts they meet the average; they are neither duplicated nor reordered. */
static __always_inline int apply_faults_in_kernel(struct __sk_buff *skb,
						  struct virtual_port *mapped,
						  const struct port_settings *rules)
{
	const struct fault_settings *faults = &rules->faults;
	__u64 n = __sync_fetch_and_add(&mapped->kernel_draws, 1) * FAULT_STREAMS;
	__u64 bad = faults->good_to_bad << 31; /* then 2^-31: the share of time in the bad state */
	struct packet packet;

	if (bad)
		bad /= faults->good_to_bad + faults->bad_to_good;
	if (draw(rules->seed, STREAM_KERNEL, n + FAULT_BURST) < bad * faults->loss_in_bad >> 31)
		return 1;
	if (draw(rules->seed, STREAM_KERNEL, n + FAULT_LOSS) < loss_chance(skb, faults))
		return 1;
	if (draw(rules->seed, STREAM_KERNEL, n + FAULT_CORRUPTION) < faults->corruption) {
		parse(skb, &packet);
		corrupt(skb, &packet, draw(rules->seed, STREAM_KERNEL, n + FAULT_BIT));
	}
	return 0;
}

#endif
