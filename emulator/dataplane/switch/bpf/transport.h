/* Which frames are those of a transport: UET over UDP and natively, RoCEv2, and either in a tunnel.
 *
 * In a fabric with a virtual clock these frames are the engine's, which gives each its time on
 * every cable and in every queue.  All others (ARP, routing protocols, ping) pass in the kernel.
 * The cables sort frames, too (emulator/fabric/inner/carried.py), and both have to do it alike.
 */
#ifndef UETEMU_TRANSPORT_H
#define UETEMU_TRANSPORT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define UET_PORT 4793	/* UES 3.5.4 */
#define ROCE_PORT 4791	/* IBA annex A17 */
#define VXLAN_PORT 4789 /* RFC 7348 */
#define UDP_OCTETS 8
#define VXLAN_OCTETS 8
#define IPV4_OCTETS 20 /* without options */
#define IPV6_OCTETS 40
#define LATER_FRAGMENT 0x1fff /* of an IPv4 packet: it has no ports */

enum payload_kind { PAYLOAD_OTHER, PAYLOAD_TRANSPORT, PAYLOAD_IPV4, PAYLOAD_ETHERNET };

/* What the IP packet at `*offset` carries; `*offset` is then where that begins. */
static __always_inline enum payload_kind payload_of(struct __sk_buff *skb, __be16 type,
						    __u32 *offset, __u32 native_protocol)
{
	__u8 head[IPV6_OCTETS], ports[4];
	__u32 protocol, port;

	if (type == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, *offset, head, IPV4_OCTETS))
			return PAYLOAD_OTHER;
		if ((head[6] << 8 | head[7]) & LATER_FRAGMENT)
			return PAYLOAD_OTHER;
		protocol = head[9];
		*offset += (head[0] & 0xf) * 4;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, *offset, head, IPV6_OCTETS))
			return PAYLOAD_OTHER;
		protocol = head[6];
		*offset += IPV6_OCTETS;
	} else {
		return PAYLOAD_OTHER;
	}
	if (protocol == native_protocol)
		return PAYLOAD_TRANSPORT;
	if (protocol == IPPROTO_IPIP && type == bpf_htons(ETH_P_IP))
		return PAYLOAD_IPV4;
	if (protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, *offset, ports, sizeof(ports)))
		return PAYLOAD_OTHER;
	port = ports[2] << 8 | ports[3];
	if (port == UET_PORT || port == ROCE_PORT)
		return PAYLOAD_TRANSPORT;
	if (port != VXLAN_PORT || type != bpf_htons(ETH_P_IP))
		return PAYLOAD_OTHER;
	*offset += UDP_OCTETS + VXLAN_OCTETS;
	return PAYLOAD_ETHERNET;
}

/* Whether an Ethernet frame belongs to a transport: itself, or in a tunnel over IPv4, which is VXLAN
 * or another IPv4. */
static __always_inline int is_transport(struct __sk_buff *skb, __u32 native_protocol)
{
	__u32 offset = ETH_HLEN;
	__be16 type = skb->protocol;

	switch (payload_of(skb, type, &offset, native_protocol)) {
	case PAYLOAD_TRANSPORT:
		return 1;
	case PAYLOAD_ETHERNET:
		if (bpf_skb_load_bytes(skb, offset + ETH_HLEN - 2, &type, sizeof(type)))
			return 0;
		offset += ETH_HLEN;
		break;
	case PAYLOAD_IPV4:
		break;
	default:
		return 0;
	}
	return payload_of(skb, type, &offset, native_protocol) == PAYLOAD_TRANSPORT;
}

#endif
