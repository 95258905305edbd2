"""What the Wireshark dissector rests on, in Lua: its own fields, preferences, CRC, and IP.

:mod:`uet.wire.wireshark` puts the generated tables in front of it; :mod:`uet.wire.wireshark_walk`
and :mod:`uet.wire.wireshark_packet` come behind.  There are no offsets, numbers or names of UET
in here; those of IP and UDP are what the CRC and trimming need.
"""

from __future__ import annotations

#: Stands at the very beginning: ends the script in a Wireshark that knows UET already.
GUARD = """\
local free, uet = pcall(Proto, "uet", "Ultra Ethernet Transport (uetemu)")
if not free then
  return -- this Wireshark has a UET dissector already, and keeps it
end
"""

SETUP = r"""
local experts = {
  pds = ProtoExpert.new("uet.pds.invalid_header", "PDS header is cut short",
    expert.group.MALFORMED, expert.severity.ERROR),
  ses = ProtoExpert.new("uet.ses.invalid_header", "SES header is cut short",
    expert.group.MALFORMED, expert.severity.ERROR),
  tss = ProtoExpert.new("uet.tss.invalid_header", "TSS header or tag is cut short",
    expert.group.MALFORMED, expert.severity.ERROR),
  type = ProtoExpert.new("uet.error.type", "Packet type is reserved",
    expert.group.MALFORMED, expert.severity.ERROR),
  length = ProtoExpert.new("uet.error.length", "Lengths contradict each other",
    expert.group.MALFORMED, expert.severity.ERROR),
  trailing = ProtoExpert.new("uet.error.trailing", "Octets where there should be none",
    expert.group.MALFORMED, expert.severity.ERROR),
  next_hdr = ProtoExpert.new("uet.error.next_hdr", "Next header makes no sense in this packet",
    expert.group.PROTOCOL, expert.severity.ERROR),
  version = ProtoExpert.new("uet.error.version", "SES version is unknown",
    expert.group.PROTOCOL, expert.severity.ERROR),
  crc = ProtoExpert.new("uet.error.crc", "CRC is wrong",
    expert.group.CHECKSUM, expert.severity.ERROR),
  reserved = ProtoExpert.new("uet.note.reserved", "Reserved bits are not zero",
    expert.group.PROTOCOL, expert.severity.NOTE),
  trimmed = ProtoExpert.new("uet.note.trimmed", "A switch trimmed this packet",
    expert.group.SEQUENCE, expert.severity.NOTE),
  retx = ProtoExpert.new("uet.note.retx", "Retransmission",
    expert.group.SEQUENCE, expert.severity.NOTE),
  nack = ProtoExpert.new("uet.note.nack", "The packet was refused",
    expert.group.RESPONSE_CODE, expert.severity.NOTE),
  failed = ProtoExpert.new("uet.note.return_code", "The operation failed",
    expert.group.RESPONSE_CODE, expert.severity.NOTE),
}
local plain = {
  pds = ProtoField.none("uet.pds", "PDS"),
  ses = ProtoField.none("uet.ses", "SES"),
  tss = ProtoField.none("uet.tss", "TSS"),
  entropy = ProtoField.none("uet.entropy", "Entropy header"),
  flags = ProtoField.uint16("uet.pds.flags", "Flags", base.HEX, nil, 0x007f),
  epsn_flag = ProtoField.bool("uet.pds.flags.epsn", "Expected PSN follows (epsn)", 8, nil, 0x40),
  epsn = ProtoField.uint32("uet.pds.expected_psn", "Expected PSN", base.DEC),
  payload = ProtoField.bytes("uet.payload", "Payload"),
  negotiation = ProtoField.bytes("uet.pds.negotiation", "Negotiation payload"),
  ciphertext = ProtoField.bytes("uet.tss.ciphertext", "Encrypted PDS, SES and payload"),
  icv = ProtoField.bytes("uet.tss.icv", "Authentication tag (ICV)"),
  truncated = ProtoField.bytes("uet.truncated", "Truncated"),
  trimmed = ProtoField.bool("uet.trimmed", "Trimmed by a switch"),
  crc = ProtoField.uint32("uet.crc", "CRC", base.HEX),
  crc_status = ProtoField.uint8("uet.crc.status", "CRC status", base.DEC,
    { [0] = "Bad", [1] = "Good", [2] = "Unverified" }),
  reply = ProtoField.framenum("uet.pds.reply_in", "Answered in", base.NONE, frametype.RESPONSE),
  asked = ProtoField.framenum("uet.pds.reply_to", "Answers", base.NONE, frametype.REQUEST),
  sacked = ProtoField.string("uet.pds.sack_received", "PSNs in the SACK bitmap"),
  delay = ProtoField.relative_time("uet.pds.reply_time", "Time since the last transmission"),
  first = ProtoField.framenum("uet.pds.retx_of", "First transmitted in", base.NONE,
    frametype.RETRANS_PREV),
}
for _, list in ipairs({ plain, derived }) do
  for _, field in pairs(list) do
    fields[#fields + 1] = field
  end
end
uet.fields = fields
uet.experts = {}
do
  local list = {}
  for _, each in pairs(experts) do
    list[#list + 1] = each
  end
  uet.experts = list
end

local prefs = uet.prefs
prefs.port = Pref.uint("UDP destination port", UDP_PORT, "Destination port of UET over UDP")
prefs.protocol = Pref.uint("IP protocol without UDP", NATIVE_PROTOCOL,
  "IP protocol or next header of UET behind an entropy header")
prefs.crc = Pref.enum("Packets end with a CRC", 0,
  "Nothing on the wire says so. Automatic: the last octets are a CRC if they verify",
  { { 1, "Automatic", 0 }, { 2, "Always", 1 }, { 3, "Never", 2 } }, false)
prefs.dscp = Pref.range("DSCP of trimmed packets", "",
  "Empty: a packet whose UDP length exceeds what its IP length leaves counts as trimmed", 63)
prefs.epsn = Pref.bool("ACK flag 0x40 announces an expected PSN", false,
  "As the reference provider has it in the ACK that closes a secured PDC")

local trimmed_dscp -- nil while the preference is empty
local function read_dscp()
  trimmed_dscp = nil
  for from, to in tostring(prefs.dscp):gmatch("(%d+)%-?(%d*)") do
    trimmed_dscp = trimmed_dscp or {}
    for code = tonumber(from), tonumber(to) or tonumber(from) do
      trimmed_dscp[code] = true
    end
  end
end

-- CRC-32C, eight octets at a time ---------------------------------------------------------------
-- Wireshark brings one of the libraries; should it stop to, its Lua has the operators by then.
local bits = bit or bit32 or load([[
  local function bxor(x, y, ...)
    return y and bxor(x ~ y, ...) or x
  end
  return {
    bxor = bxor,
    band = function(x, y) return x & y end,
    rshift = function(x, count) return x >> count end,
  }
]])()
local bxor, band, rshift = bits.bxor, bits.band, bits.rshift
local crc_tables = { {} }
for index = 0, 255 do
  local crc = index
  for _ = 1, 8 do
    crc = band(crc, 1) == 1 and bxor(rshift(crc, 1), CRC_POLYNOMIAL) or rshift(crc, 1)
  end
  crc_tables[1][index] = crc
end
for slice = 2, 8 do
  crc_tables[slice] = {}
  for index = 0, 255 do
    local crc = crc_tables[slice - 1][index]
    crc_tables[slice][index] = bxor(rshift(crc, 8), crc_tables[1][band(crc, 255)])
  end
end

local function crc32c(octets)
  local t1, t2, t3, t4 = crc_tables[1], crc_tables[2], crc_tables[3], crc_tables[4]
  local t5, t6, t7, t8 = crc_tables[5], crc_tables[6], crc_tables[7], crc_tables[8]
  local crc, at, size, byte = 0xffffffff, 1, #octets, string.byte
  while at + 7 <= size do
    local a, b, c, d, e, f, g, h = byte(octets, at, at + 7)
    crc = bxor(crc, a + b * 256 + c * 65536 + d * 16777216)
    crc = bxor(t8[band(crc, 255)], t7[band(rshift(crc, 8), 255)],
      t6[band(rshift(crc, 16), 255)], t5[rshift(crc, 24)], t4[e], t3[f], t2[g], t1[h])
    at = at + 8
  end
  for index = at, size do
    crc = bxor(rshift(crc, 8), t1[band(bxor(crc, byte(octets, index)), 255)])
  end
  return bxor(crc, 0xffffffff) % 4294967296
end

-- What carries the packet -----------------------------------------------------------------------
local quoting = { Field.new("icmp"), Field.new("icmpv6") }
local ip_source, ip6_source = Field.new("ip.src"), Field.new("ipv6.src")

-- The innermost IP header in front of the octets at `offset`.
local function find_ip(offset)
  local found
  for version, list in pairs({ [4] = { ip_source() }, [6] = { ip6_source() } }) do
    for _, address in ipairs(list) do
      if address.offset < offset and (not found or address.offset > found.covered) then
        found = { version = version, covered = address.offset, frame = address.source }
      end
    end
  end
  if not found then
    return nil
  end
  local frame = found.frame
  if found.version == 4 then
    local start = found.covered - 12
    local length = frame(start + 2, 2):uint()
    found.dscp = rshift(frame(start + 1, 1):uint(), 2)
    found.stop = length < 20 and frame:reported_len() or start + length
  else
    local start = found.covered - 8
    found.dscp = band(rshift(frame(start, 2):uint(), 6), 63)
    found.stop = start + 40 + frame(start + 4, 2):uint()
  end
  return found
end

local crc_seen = {} -- frame and offset -> CRC of the packet, for the passes after the first

local function crc_of(ip, udp, stop, number)
  local key = number .. "/" .. stop
  local known = crc_seen[key]
  if not known then
    local frame, from = ip.frame, ip.covered
    if udp then
      local head = frame(from, udp + 6 - from):raw() .. "\0\0"
      known = crc32c(head .. (stop > udp + 8 and frame(udp + 8, stop - udp - 8):raw() or ""))
    else
      known = crc32c(frame(from, stop - from):raw())
    end
    crc_seen[key] = known
  end
  return known
end
"""
