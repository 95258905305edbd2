"""The dissector's part that takes a packet from UDP or IP, in Lua: carrier, trimming, TSS, CRC.

Offsets and numbers in the carrier are those of Ethernet, IP (RFC 791, RFC 8200) and UDP.
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


PACKET = r"""
-- TSS -------------------------------------------------------------------------------------------
local function tss(c)
  c.name = "TSS"
  local sp = band(byte(c.s, c.at + 1), TSS_SSI_MASK) ~= 0
  local values, item, whole = take(c, sp and TSS_HEADERS[2] or TSS_HEADERS[1])
  if values.sdi then
    c.secured = format("SDI %d AN %d", values.sdi, values.an)
  end
  if values.counter then
    c.secured = c.secured .. format(" epoch %d counter %.0f", values.epoch, values.counter)
  end
  if not whole then
    return
  end
  local left = c.stop - c.at
  if c.trimmed or c.stop > c.have then
    rest(c, plain.ciphertext)
  elseif left < ICV_SIZE then
    expert(c, item, experts.tss, left .. " octets are too few for the tag")
    rest(c, plain.ciphertext)
  else
    c.size = format("%d B encrypted", left - ICV_SIZE)
    c.stop = c.stop - ICV_SIZE
    c.limit = c.stop
    rest(c, plain.ciphertext)
    if c.show and is_shown(c, plain.icv) then
      c.top:add(plain.icv, c.tvb(c.stop, ICV_SIZE))
    end
  end
end

-- The packet ------------------------------------------------------------------------------------
-- Takes the CRC off the end, if there is one: `c.crc` then has what is to be shown of it.
local function trailer(c, ip, udp)
  c.check_crc = crc_mode ~= 2
  if crc_mode == 2 or c.trimmed or not ip or c.stop > c.have then
    return
  end
  if c.stop - c.at < CRC_SIZE then
    if crc_mode == 1 then
      expert(c, nil, experts.length, "The packet is too short for its CRC")
    end
    return
  end
  local place = c.stop - CRC_SIZE
  local range = c.tvb(place, CRC_SIZE)
  local right = crc_of(ip, udp, c.tvb:offset() + place)
  local good = range:uint() == right
  if good or crc_mode == 1 then
    c.stop, c.limit = place, place
    c.crc = { range = range, good = good, right = right }
  end
end

local function show_crc(c)
  local item
  if c.show then
    item = is_shown(c, plain.crc) and c.top:add(plain.crc, c.crc.range)
    if is_shown(c, plain.crc_status) then
      c.top:add(plain.crc_status, c.crc.good and 1 or 0):set_generated()
    end
  end
  if not c.crc.good then
    expert(c, item or nil, experts.crc, format("CRC should be 0x%08x", c.crc.right))
  end
end

-- The parts of the summary line, in their order, and how those that are numbers are written.
local SAID = { "name", "control", "opcode", "operation", "data", "code", "marks", "psn", "cack",
  "packet", "pdcs", "says", "secured", "message", "size", "offset" }
local FORMATS = { psn = "PSN %.0f", cack = "CACK %.0f", packet = "packet 0x%08x",
  message = "msg %d", offset = "at %.0f" }
local said = {}

local function summary(c)
  local count = 0
  if c.trimmed then
    said[1], count = "[trimmed]", 1
  end
  for index = 1, #SAID do
    local part = SAID[index]
    local value = c[part]
    if value then
      local form = FORMATS[part]
      count = count + 1
      said[count] = form and format(form, value) or value
    end
  end
  return table.concat(said, " ", 1, count)
end

-- All headers that a packet may have lie in so many octets.
local HEADERS = 256

-- What of the packet anybody looks at.  Nothing while a capture is opened, which is why that is
-- quick; Wireshark before 2.4 does not tell.
local own
local function is_referenced(root)
  own = own or Dissector.get("uet")
  return root:referenced(own)
end

-- One table for all packets, since a packet is in no other: making it anew takes time.
local the_cursor = {}

local function cursor(tvb, pinfo, root, quoted)
  local all = root.visible
  local show = all
  if not all then
    local told, referenced = pcall(is_referenced, root)
    show, all = not told or referenced, not told
  end
  local columns = pinfo.cols
  local listed = not quoted and tostring(columns.info) ~= "(info)" -- which is no column's text
  local have, stop = tvb:len(), tvb:reported_len()
  local c = the_cursor
  for key in pairs(c) do
    c[key] = nil
  end
  c.tvb, c.pinfo, c.root, c.at, c.show, c.all, c.quoted = tvb, pinfo, root, 0, show, all, quoted
  c.columns, c.say, c.stop, c.have = listed and columns, all or listed, stop, have
  c.limit = stop < have and stop or have
  c.s = tvb:raw(0, have < HEADERS and have or HEADERS)
  return c
end

local function judge_lengths(c, ip, offset, short)
  if ip and c.quoted then -- the beginning of a packet, in an ICMP error: as if capture had cut it
    c.stop = math.max(c.stop, (ip.claimed or ip.stop) - offset)
    c.limit = math.min(c.stop, c.have)
  elseif ip then
    if trimmed_dscp then
      c.trimmed = ip.marked or trimmed_dscp[ip.dscp]
      if ip.shortened and not c.trimmed then
        expert(c, nil, experts.length, "UDP length exceeds what IP carries")
      end
    else
      c.trimmed = ip.shortened
    end
  end
  if short then
    expert(c, nil, experts.length, "UDP length is less than what IP carries")
  end
  if c.trimmed then
    if c.show and is_shown(c, plain.trimmed) then
      c.top:add(plain.trimmed, true):set_generated()
    end
    expert(c, nil, experts.trimmed)
  end
end

local function take_packet(c, ip, udp)
  if not udp then
    local _, _, whole = take_if_any(c, ENTROPY)
    if not whole then
      return false
    end
  end
  if c.at >= c.limit then
    if c.stop <= c.have then
      expert(c, nil, experts.length, "No octets follow the UDP or entropy header")
    end
    return false
  end
  local kind = rshift(byte(c.s, c.at + 1), 3)
  if kind == TSS then
    tss(c)
    return true
  end
  trailer(c, ip, udp)
  if c.at < c.stop then
    pds(c, kind)
  else
    expert(c, nil, experts.length, "The packet is nothing but a CRC")
  end
  if c.crc then
    show_crc(c)
  end
  return true
end

local function dissect(tvb, pinfo, root, native)
  local offset = tvb:offset()
  local udp = not native and offset - 8 or nil
  local ip, length = find_ip(offset, native)
  local short = false
  if ip and not native and udp >= 0 then
    length = length or ip.frame(udp + 4, 2):uint()
    ip.shortened = ip.shortened or udp + length > ip.stop
    if length >= 8 and udp + length < ip.stop then
      local captured = math.min(ip.stop, ip.frame:len()) - offset
      if captured > tvb:len() then
        tvb = ip.frame(offset, captured):tvb()
        short = true
      end
    end
  end
  local c = cursor(tvb, pinfo, root, pinfo.in_error_pkt)
  if linking and ip and not c.quoted then
    c.source, c.destination = ip.source, ip.destination
  end
  if c.show then
    top_of(c)
  end
  judge_lengths(c, ip, offset, short)
  if c.columns then
    c.columns.protocol = "UET"
  end
  local whole = take_packet(c, ip, udp)
  if c.say then
    local text = whole and summary(c) or ""
    if c.columns then
      c.columns.info = text
    end
    if c.all and whole then
      c.top:set_text("Ultra Ethernet Transport, " .. text)
    end
  end
end

local port, protocol

-- The UDP source port is entropy: only the destination port says anything.
function uet.dissector(tvb, pinfo, root)
  local by = pinfo.match_uint
  local native = by == protocol or (by < 256 and by ~= port)
  if not native and by == port and pinfo.dst_port ~= by then
    return 0
  end
  dissect(tvb, pinfo, root, native)
  return tvb:len()
end

-- For source ports that belong to other protocols, with "try heuristic sub-dissectors first".
uet:register_heuristic("udp", function(tvb, pinfo, root)
  if pinfo.dst_port ~= port then
    return false
  end
  dissect(tvb, pinfo, root, false)
  return true
end)

local ports, protocols = DissectorTable.get("udp.port"), DissectorTable.get("ip.proto")

-- Trimming leaves the UDP length, which Wireshark's dissector of UDP calls malformed.
local wireshark_udp = Dissector.get("udp")
local udp_of_trimmed = Proto("uet_udp", "User Datagram Protocol of a trimmed packet")

local function trimmed_udp(tvb, pinfo)
  local length = tvb:len() >= 8 and tvb(4, 2):uint() or 0
  if length <= tvb:reported_len() or tvb(2, 2):uint() ~= port or pinfo.in_error_pkt then
    return false
  end
  local ip = innermost_ip(tvb:offset())
  return ip and (trimmed_dscp and ip.marked or not trimmed_dscp and tvb:offset() + length > ip.stop)
end

local function draw_udp(tvb, root)
  local source, destination = tvb(0, 2), tvb(2, 2)
  local item = root:add(plain.udp, tvb(0, 8))
  item:set_text(format("User Datagram Protocol, Src Port: %d, Dst Port: %d", source:uint(),
    destination:uint()))
  item:add(plain.udp_source, source)
  item:add(plain.udp_destination, destination)
  item:add(plain.udp_port, source):set_hidden()
  item:add(plain.udp_port, destination):set_hidden()
  item:add(plain.udp_length, tvb(4, 2)):append_text(format(" (%d octets are left)",
    tvb:reported_len()))
  item:add(plain.udp_checksum, tvb(6, 2))
end

function udp_of_trimmed.dissector(tvb, pinfo, root)
  if not trimmed_udp(tvb, pinfo) then
    -- What a cut or wrong packet raises stands in the tree by then.
    local done, taken = pcall(wireshark_udp.call, wireshark_udp, tvb, pinfo, root)
    return done and taken or tvb:len()
  end
  pinfo.src_port, pinfo.dst_port = tvb(0, 2):uint(), port
  draw_udp(tvb, root)
  ports:try(port, tvb(8):tvb(), pinfo, root)
  return tvb:len()
end

protocols:add(17, udp_of_trimmed)

local function apply_preferences()
  read_dscp()
  crc_mode, linking, reference_provider = prefs.crc, prefs.links, prefs.reference_provider
  if port ~= prefs.port then
    if port then
      ports:remove(port, uet)
    end
    port = prefs.port
    ports:add(port, uet)
  end
  if protocol ~= prefs.protocol then
    if protocol then
      protocols:remove(protocol, uet)
    end
    protocol = prefs.protocol
    protocols:add(protocol, uet)
  end
end

function uet.init()
  forget_links()
  apply_preferences()
end

uet.prefs_changed = apply_preferences
apply_preferences()
"""
