"""The dissector's part for carriers, in Lua: the IP and UDP headers, the CRC.

Offsets and numbers in here are those of Ethernet, IP (RFC 791, RFC 8200) and UDP.
"""

from __future__ import annotations

CARRIER = r"""
-- What carries the packet -----------------------------------------------------------------------
local udp_length = Field.new("udp.length")
local ip_source, ip6_source = Field.new("ip.src"), Field.new("ipv6.src")

-- IP right behind Ethernet, UDP right behind IP: all is where it must be.  `s` begins with the
-- Ethernet type, 12 octets into the frame.
local function plain_ipv4(frame)
  local s = frame:raw(12, 30)
  local t1, t2, version, traffic, l1, l2, _, _, _, _, _, protocol = byte(s, 1, 12)
  if t1 ~= 8 or t2 ~= 0 or version ~= 0x45 or protocol ~= 17 then
    return nil
  end
  local length = l1 * 256 + l2
  return { covered = 26, frame = frame, dscp = rshift(traffic, 2),
    stop = length < 20 and frame:reported_len() or 14 + length,
    source = linking and sub(s, 15, 18), destination = linking and sub(s, 19, 22) }
end

local function plain_ipv6(frame)
  local s = frame:raw(12, 50)
  local t1, t2, v1, v2, _, _, l1, l2, protocol = byte(s, 1, 9)
  if t1 ~= 0x86 or t2 ~= 0xdd or rshift(v1, 4) ~= 6 or protocol ~= 17 then
    return nil
  end
  return { covered = 22, frame = frame, dscp = band(rshift(v1 * 256 + v2, 6), 63),
    stop = 54 + l1 * 256 + l2, source = linking and sub(s, 11, 26),
    destination = linking and sub(s, 27, 42) }
end

-- The IP header whose source address `address` was taken from.
local function ip_at(address, version)
  local frame, covered, size = address.source, address.offset, version == 4 and 4 or 16
  if covered + 2 * size > frame:len() then
    return nil
  end
  local found = { covered = covered, frame = frame }
  found.source, found.destination = frame:raw(covered, size), frame:raw(covered + size, size)
  if version == 4 then
    local start = covered - 12
    local length = frame(start + 2, 2):uint()
    found.dscp = rshift(frame(start + 1, 1):uint(), 2)
    found.stop = length < 20 and frame:reported_len() or start + length
  else
    local start = covered - 8
    found.dscp = band(rshift(frame(start, 2):uint(), 6), 63)
    found.stop = start + 40 + frame(start + 4, 2):uint()
  end
  return found
end

-- The innermost IP header in front of the octets at `offset`, wherever it is.  A switch that trims
-- what a tunnel carries changes the outer header only: the packet ends where any of them says.
local function innermost_ip(offset)
  local found, stop, marked
  for version, list in pairs({ [4] = { ip_source() }, [6] = { ip6_source() } }) do
    for _, address in ipairs(list) do
      local ip = address.offset < offset and ip_at(address, version)
      if ip then
        stop = stop and math.min(stop, ip.stop) or ip.stop
        marked = marked or trimmed_dscp and trimmed_dscp[ip.dscp]
        if not found or ip.covered > found.covered then
          found = ip
        end
      end
    end
  end
  if found then
    found.claimed, found.stop, found.marked = found.stop, stop, marked
    for _, length in ipairs({ udp_length() }) do
      if length.offset < offset and length.offset - 4 + length.value > stop then
        found.shortened = true
      end
    end
  end
  return found
end

-- The IP header of a UET packet at `offset` of its frame, and UDP's length unless `native`.
local function find_ip(offset, native)
  if native then
    return innermost_ip(offset)
  end
  local udp = offset - 8
  local info, another = udp_length()
  if another then -- a tunnel
    for _, each in ipairs({ udp_length() }) do
      if each.offset == udp + 4 then
        info = each
      end
    end
  end
  if not info or info.offset ~= udp + 4 then
    return innermost_ip(udp)
  end
  local ip
  if udp == 34 then
    ip = plain_ipv4(info.source)
  elseif udp == 54 then
    ip = plain_ipv6(info.source)
  end
  return ip or innermost_ip(udp), info.value
end

-- The CRC of the packet that ends at `stop` of its frame (UES 3.7): addresses on, UDP's checksum
-- as zero.
local function crc_of(ip, udp, stop)
  local frame, from = ip.frame, ip.covered
  if not udp then
    return crc32c(frame:raw(from, stop - from))
  end
  local head = frame:raw(from, udp + 6 - from) .. "\0\0"
  return crc32c(head .. (stop > udp + 8 and frame:raw(udp + 8, stop - udp - 8) or ""))
end
"""
