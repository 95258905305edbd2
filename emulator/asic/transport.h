/* Which frames are those of a transport: UET over UDP and natively, RoCEv2, and either in a tunnel.
 *
 * In a fabric with a virtual clock these frames are the engine's, which gives each its time on
 * every cable and in every queue.  All others (ARP, routing protocols, ping) pass in the kernel.
 * Whoever sorts frames has to sort them alike: emulator/endpoint/frame_filter.py says the same of
 * frames outside tunnels.
 */
#ifndef UETEMU_TRANSPORT_H
#define UETEMU_TRANSPORT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define UET_PORT 4793	 /* UES 3.5.4 */
#define ROCE_PORT 4791	 /* IBA annex A17 */
#define VXLAN_PORT 4789	 /* RFC 7348 */
#define UDP_OCTETS 8
#define VXLAN_OCTETS 8
#define IPV4_FRAGMENT_OFFSET 0x1fff /* only the first fragment has the ports */

enum payload_kind { PAYLOAD_OTHER, PAYLOAD_TRANSPORT, PAYLOAD_IP, PAYLOAD_ETHERNET };

/* What the IP packet at `*offset` carries; `*offset` is then where that begins. */
static __always_inline enum payload_kind payload_of(struct __sk_buff *skb, __u32 *offset,
						    __u32 native_protocol)
{
	__u8 head[20], ports[4];
	__u32 protocol, port;

	if (bpf_skb_load_bytes(skb, *offset, head, sizeof(head)))
		return PAYLOAD_OTHER;
	if (head[0] >> 4 == 4) {
		if ((head[6] << 8 | head[7]) & IPV4_FRAGMENT_OFFSET)
			return PAYLOAD_OTHER;
		protocol = head[9];
		*offset += (head[0] & 0xf) * 4;
	} else if (head[0] >> 4 == 6) {
		protocol = head[6];
		*offset += 40;
	} else {
		return PAYLOAD_OTHER;
	}
	if (protocol == native_protocol)
		return PAYLOAD_TRANSPORT;
	if (protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6)
		return PAYLOAD_IP;
	if (protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, *offset, ports, sizeof(ports)))
		return PAYLOAD_OTHER;
	port = ports[2] << 8 | ports[3];
	if (port == UET_PORT || port == ROCE_PORT)
		return PAYLOAD_TRANSPORT;
	if (port != VXLAN_PORT)
		return PAYLOAD_OTHER;
	*offset += UDP_OCTETS + VXLAN_OCTETS;
	return PAYLOAD_ETHERNET;
}

/* Whether an Ethernet frame belongs to a transport, itself or in one tunnel (VXLAN, IP in IP). */
static __always_inline int is_transport(struct __sk_buff *skb, __u32 native_protocol)
{
	__u32 offset = ETH_HLEN;
	__be16 type;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	switch (payload_of(skb, &offset, native_protocol)) {
	case PAYLOAD_TRANSPORT:
		return 1;
	case PAYLOAD_ETHERNET:
		if (bpf_skb_load_bytes(skb, offset + ETH_HLEN - 2, &type, sizeof(type)) ||
		    (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6)))
			return 0;
		offset += ETH_HLEN;
		break;
	case PAYLOAD_IP:
		break;
	default:
		return 0;
	}
	return payload_of(skb, &offset, native_protocol) == PAYLOAD_TRANSPORT;
}

#endif
