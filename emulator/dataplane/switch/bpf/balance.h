/* Which of several equal next hops a packet takes.
 *
 * The kernel's routing takes a packet's hash, if it has one, divides the range of hashes evenly
 * among the next hops, and never asks where the hash came from.  So whoever sets the hash on
 * arrival chooses the hop: any hash will do to spread, and the middle of the i-th share is hop i.
 */
#ifndef UETEMU_BALANCE_H
#define UETEMU_BALANCE_H

#include <linux/in.h>
#include "packet.h"
#include "queue.h"
#include "random.h"

#define FRAGMENT 0x3fff /* offset and "more fragments": only the first one has the ports */

struct flow {
	__u64 hash;
	__u8 destination[16];
};

/* Addresses, protocol and the first four octets of payload: the ports of UDP and TCP, or the
 * entropy header of native encapsulation (UES 3.2).  -1 if it cannot be read. */
static __always_inline int flow_of(struct __sk_buff *skb, const struct packet *packet,
				   const struct port_settings *rules, struct flow *flow)
{
	__u64 words[4], hash = rules->switch_seed;
	__u32 protocol, has_ports = 1, ports = 0;
	__u8 head[IPV6_HEADER];

	if (packet->version == 4) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, head, SMALLEST_IPV4_HEADER))
			return -1;
		__builtin_memcpy(words, head + 12, 8);
		hash = mixed(hash ^ words[0]);
		protocol = head[9];
		has_ports = !(word(head + 6) & FRAGMENT);
		__builtin_memset(flow->destination, 0, 10);
		__builtin_memset(flow->destination + 10, 0xff, 2);
		__builtin_memcpy(flow->destination + 12, head + 16, 4);
	} else {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, head, IPV6_HEADER))
			return -1;
		__builtin_memcpy(words, head + 8, 32);
		hash = mixed(hash ^ words[0]);
		hash = mixed(hash ^ words[1]);
		hash = mixed(hash ^ words[2]);
		hash = mixed(hash ^ words[3]);
		protocol = head[6];
		__builtin_memcpy(flow->destination, head + 24, 16);
	}
	if (has_ports && packet->payload >= 4 &&
	    (protocol == IPPROTO_UDP || protocol == IPPROTO_TCP ||
	     protocol == rules->native_protocol) &&
	    bpf_skb_load_bytes(skb, ETH_HLEN + packet->header, &ports, 4))
		return -1;
	flow->hash = mixed(hash ^ ((__u64)protocol << 32 | ports));
	return 0;
}

/* A pause in a flow lets the next burst take another way without overtaking the last one.  Flows
 * whose hashes share a place in the table are one flow here, as they are in hardware. */
static __always_inline __u32 flowlet_hash(const struct port_settings *rules, __u64 hash, __u64 now)
{
	__u32 place = rules->switch_number * FLOWLETS + (hash & (FLOWLETS - 1));
	struct flowlet *flowlet = bpf_map_lookup_elem(&flowlets, &place);

	if (!flowlet)
		return hash >> 32;
	if (now - flowlet->last > rules->flowlet_gap)
		flowlet->salt++;
	flowlet->last = now;
	return mixed(hash + flowlet->salt) >> 32;
}

static __always_inline struct route *route_of(const struct port_settings *rules,
					      const struct flow *flow)
{
	struct route_key key = {
		.prefix_length = 8 * (sizeof(key) - sizeof(key.prefix_length)),
		.switch_number = rules->switch_number,
	};

	__builtin_memcpy(key.address, flow->destination, sizeof(key.address));
	return bpf_map_lookup_elem(&routes, &key);
}

static __always_inline __u32 least_loaded(const struct route *route, __u32 first, __u64 now)
{
	__u64 best = ~0ULL;
	__u32 chosen = first, i;

	for (i = 0; i < HOPS; i++) {
		__u32 hop = first + i, index;
		struct port_settings *rules;
		struct port_state *port;
		__u64 depth;

		if (i >= route->hops)
			break;
		if (hop >= route->hops)
			hop -= route->hops;
		if (hop >= HOPS)
			break;
		index = route->ports[hop];
		rules = bpf_map_lookup_elem(&settings, &index);
		port = bpf_map_lookup_elem(&ports, &index);
		if (!rules || !port)
			continue;
		depth = waiting(port, virtual_port_of(index), rules, now);
		if (depth < best) {
			best = depth;
			chosen = hop;
		}
	}
	return chosen;
}

/* The middle of hop i's share of all hashes. */
static __always_inline __u32 hash_of_hop(__u32 hop, __u32 hops)
{
	return ((2 * (__u64)hop + 1) << 31) / hops;
}

static __always_inline void balance(struct __sk_buff *skb, const struct packet *packet,
				    struct port_state *port, const struct port_settings *rules)
{
	struct flow flow;
	struct route *route;
	__u32 hash, turn;

	if (flow_of(skb, packet, rules, &flow))
		return;
	hash = flow.hash >> 32;
	switch (rules->balancing) {
	case BALANCE_FLOWLET:
		hash = flowlet_hash(rules, flow.hash, now_at(rules));
		break;
	case BALANCE_PACKET:
		hash = next_draw(rules->seed, STREAM_HASH, &port->hash_draws);
		break;
	case BALANCE_ROUND_ROBIN:
	case BALANCE_LEAST_LOADED:
		route = route_of(rules, &flow);
		if (!route || !route->hops)
			break; /* not a multipath destination: the flow's hash does no harm */
		turn = __sync_fetch_and_add(&route->turn, 1) % route->hops;
		if (rules->balancing == BALANCE_LEAST_LOADED)
			/* from hop to hop in turn, lest all the world takes the first idle one */
			turn = least_loaded(route, turn, now_at(rules));
		hash = hash_of_hop(turn, route->hops);
		break;
	}
	bpf_set_hash(skb, hash);
}

#endif
