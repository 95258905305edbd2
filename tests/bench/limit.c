// Bare crossings of a run's way through the kernel: packet sockets and rings, and nothing else.

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <sys/socket.h>

// Slots of a TPACKET_V2 receive ring (packet(7)): tp_status, tp_len, tp_snaplen, tp_mac.
struct ring {
    uint8_t *memory;
    const uint32_t *slots; // where each begins
    uint32_t count;
    uint32_t head;
};

// Where a frame is sent, and the ring in which it comes out.
struct crossing {
    int socket;
    struct ring *ring;
};

enum { USER = 1, PATIENCE = 1000000 };

static uint8_t *oldest(const struct ring *ring, uint32_t *length)
{
    uint8_t *slot = ring->memory + ring->slots[ring->head];
    for (int polls = 0; polls < PATIENCE; polls++) {
        if (__atomic_load_n((uint32_t *)slot, __ATOMIC_ACQUIRE) & USER) {
            *length = *(uint32_t *)(slot + 4);
            return slot + *(uint16_t *)(slot + 12);
        }
        sched_yield(); // the softirq runs in another thread
    }
    return 0;
}

static void release(struct ring *ring)
{
    __atomic_store_n((uint32_t *)(ring->memory + ring->slots[ring->head]), 0, __ATOMIC_RELEASE);
    ring->head = ring->head + 1 == ring->count ? 0 : ring->head + 1;
}

// Let `frames` frames cross, one after the other.  Return 0, or which crossing (from 1 on) one was
// lost in, or minus an errno.
int cross(const struct crossing *crossings, int count, const uint8_t *frame, uint32_t length,
          long frames)
{
    for (long sent = 0; sent < frames; sent++) {
        const uint8_t *octets = frame;
        uint32_t here = length;
        for (int at = 0; at < count; at++) {
            if (send(crossings[at].socket, octets, here, 0) != (ssize_t)here)
                return -errno;
            if (at)
                release(crossings[at - 1].ring);
            octets = oldest(crossings[at].ring, &here);
            if (!octets)
                return at + 1;
        }
        release(crossings[count - 1].ring);
    }
    return 0;
}
