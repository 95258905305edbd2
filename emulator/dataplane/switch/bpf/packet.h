/* The outermost IP header of a frame.
 *
 * Headers are read by copy: a frame of a packet socket keeps everything behind the Ethernet header
 * in pages that direct access does not reach.
 */
#ifndef UETEMU_PACKET_H
#define UETEMU_PACKET_H

#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include "asic.h"

#define IPV6_HEADER 40
#define SMALLEST_IPV4_HEADER 20
#define WIRE_OVERHEAD 24 /* preamble 8, FCS 4, inter-packet gap 12 */
#define SMALLEST_FRAME 84
#define ECN_MASK 3

struct packet {
	__u32 version; /* 4 or 6; 0 if it is no well-formed IP packet */
	__u32 traffic; /* DSCP and ECN */
	__u32 header;  /* octets of the IP header; IPv6 extensions are payload */
	__u32 payload; /* octets of IP payload */
};

static __always_inline __u32 dscp(const struct packet *packet)
{
	return packet->traffic >> 2;
}

/* Whether there is a mark to be set: capable of it, and not marked by an earlier switch. */
static __always_inline int can_mark(const struct packet *packet)
{
	__u32 ecn = packet->traffic & ECN_MASK;

	return ecn == 1 || ecn == 2;
}

static __always_inline __u64 octets_on_wire(const struct __sk_buff *skb)
{
	__u64 octets = skb->len + WIRE_OVERHEAD;

	return octets < SMALLEST_FRAME ? SMALLEST_FRAME : octets;
}

/* Lengths that the frame does not bear out make it something else than IP. */
static __always_inline void parse(struct __sk_buff *skb, struct packet *packet)
{
	__u8 octets[8];
	__u32 rest = skb->len - ETH_HLEN;

	packet->version = 0;
	packet->traffic = 0;
	packet->header = 0;
	packet->payload = 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, octets, sizeof(octets)))
		return;
	if (octets[0] >> 4 == 4) {
		__u32 header = (octets[0] & 0xf) * 4;
		__u32 total = octets[2] << 8 | octets[3];

		if (header < SMALLEST_IPV4_HEADER || total < header || total > rest)
			return;
		packet->version = 4;
		packet->traffic = octets[1];
		packet->header = header;
		packet->payload = total - header;
	} else if (octets[0] >> 4 == 6) {
		__u32 payload = octets[4] << 8 | octets[5];

		if (IPV6_HEADER + payload > rest)
			return;
		packet->version = 6;
		packet->traffic = (octets[0] & 0xf) << 4 | octets[1] >> 4;
		packet->header = IPV6_HEADER;
		packet->payload = payload;
	}
}

/* One's complement sum with a 16-bit word exchanged (RFC 1624, equation 3). */
static __always_inline __u32 exchanged(__u32 sum, __u32 old, __u32 new)
{
	sum = (~sum & 0xffff) + (~old & 0xffff) + new;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum & 0xffff;
}

static __always_inline __u32 word(const __u8 *octets)
{
	return octets[0] << 8 | octets[1];
}

static __always_inline void put_word(__u8 *octets, __u32 value)
{
	octets[0] = value >> 8;
	octets[1] = value;
}

/* UES 4.1: cut the IP payload to `payload` octets and say so in the outermost IP header.  What the
 * payload says of its own length (UDP) stays, as do ECN and TTL.  0 if done. */
static __always_inline int trim(struct __sk_buff *skb, const struct packet *packet, __u32 payload,
				__u32 new_dscp)
{
	__u32 traffic = new_dscp << 2 | (packet->traffic & ECN_MASK);
	__u8 head[12];

	if (bpf_skb_change_tail(skb, ETH_HLEN + packet->header + payload, 0))
		return -1;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, head, sizeof(head)))
		return -1;
	if (packet->version == 4) {
		__u32 total = packet->header + payload;
		__u32 first = word(head), sum = word(head + 10);

		sum = exchanged(sum, first, (first & 0xff00) | traffic);
		sum = exchanged(sum, word(head + 2), total);
		head[1] = traffic;
		put_word(head + 2, total);
		put_word(head + 10, sum);
	} else {
		head[0] = 6 << 4 | traffic >> 4;
		head[1] = (traffic & 0xf) << 4 | (head[1] & 0xf);
		put_word(head + 4, payload);
	}
	return bpf_skb_store_bytes(skb, ETH_HLEN, head, sizeof(head), 0);
}

#endif
