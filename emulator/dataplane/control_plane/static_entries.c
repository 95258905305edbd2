/* Mark zebra's entries of shared next hops static, on their way to the kernel.
 *
 * Preloaded into zebra: this sendmsg stands before the C library's.  A request for a new entry in
 * the table of a bridge that names a next hop (NDA_NH_ID) gets NUD_NOARP; nothing else changes.
 */
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void mark(struct nlmsghdr *message)
{
	struct ndmsg *entry = NLMSG_DATA(message);
	struct rtattr *attribute;
	int left;

	if (message->nlmsg_type != RTM_NEWNEIGH ||
	    message->nlmsg_len < NLMSG_LENGTH(sizeof(*entry)) || entry->ndm_family != AF_BRIDGE)
		return;
	left = message->nlmsg_len - NLMSG_SPACE(sizeof(*entry));
	attribute = (struct rtattr *)((char *)entry + NLMSG_ALIGN(sizeof(*entry)));
	for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
		if (attribute->rta_type == NDA_NH_ID)
			entry->ndm_state |= NUD_NOARP;
}

ssize_t sendmsg(int fd, const struct msghdr *sent, int flags)
{
	const struct sockaddr *to = sent->msg_name;

	if (to && to->sa_family == AF_NETLINK)
		for (size_t i = 0; i < sent->msg_iovlen; i++) {
			struct nlmsghdr *message = sent->msg_iov[i].iov_base;
			int left = sent->msg_iov[i].iov_len;

			for (; NLMSG_OK(message, left); message = NLMSG_NEXT(message, left))
				mark(message);
		}
	return syscall(SYS_sendmsg, fd, sent, flags);
}
