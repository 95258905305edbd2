"""The dissector's own fields, preferences and CRC, in Lua.

:mod:`uet.wire.wireshark.dissector` puts guard and prelude in front of the generated tables and the
setup behind them; :mod:`uet.wire.wireshark.links`, :mod:`uet.wire.wireshark.walk` and
:mod:`uet.wire.wireshark.packet` come behind.
"""

from __future__ import annotations

#: Stands at the very beginning: ends the script in a Wireshark that supports UET already.
GUARD = """\
local free, uet = pcall(Proto, "uet", "Ultra Ethernet Transport (uetemu)")
if not free then
  return -- this Wireshark has a UET dissector already, and keeps it
end
"""

#: Comes behind the guard, as the tables' functions use it.
PRELUDE = """\
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
local byte, floor, format, sub = string.byte, math.floor, string.format, string.sub
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
  opcode = ProtoExpert.new("uet.note.opcode", "Opcode is none of UES 1.0",
    expert.group.PROTOCOL, expert.severity.NOTE),
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
  payload = ProtoField.bytes("uet.payload", "Payload"),
  negotiation = ProtoField.bytes("uet.pds.negotiation", "Negotiation payload"),
  ciphertext = ProtoField.bytes("uet.tss.ciphertext", "Encrypted PDS, SES and payload"),
  icv = ProtoField.bytes("uet.tss.icv", "Authentication tag (ICV)"),
  truncated = ProtoField.bytes("uet.truncated", "Truncated"),
  trimmed = ProtoField.bool("uet.trimmed", "Trimmed by a switch"),
  udp = ProtoField.protocol("udp", "User Datagram Protocol"), -- names of Wireshark's dissector
  udp_source = ProtoField.uint16("udp.srcport", "Source Port"),
  udp_destination = ProtoField.uint16("udp.dstport", "Destination Port"),
  udp_port = ProtoField.uint16("udp.port", "Source or Destination Port"),
  udp_length = ProtoField.uint16("udp.length", "Length"),
  udp_checksum = ProtoField.uint16("udp.checksum", "Checksum", base.HEX),
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
prefs.links = Pref.bool("Link requests and replies", false,
  "Which frame answers which, after what time, and what was sent before, port by port. Opening a"
  .. " capture takes a third longer then. At least the last 65,536 requests wait for a reply")
prefs.reference_provider = Pref.bool("Peers are UEC reference providers", false,
  "Opcodes 0x10 and 0x11 have an extension, and ACK flag 0x40 announces an expected PSN;"
  .. " UES reserves both")

local crc_mode, linking, reference_provider = 0, false, false -- the preferences
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
  local crc, at, size = 0xffffffff, 1, #octets
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
"""
