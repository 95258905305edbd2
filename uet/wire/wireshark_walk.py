"""How the Wireshark dissector walks over PDS and SES headers, in Lua.

Which header follows which, and where a field lies in it, is in the tables that
:mod:`uet.wire.wireshark` generates.
"""

from __future__ import annotations

WALK = r"""
-- Headers ---------------------------------------------------------------------------------------
-- A cursor `c` walks over `c.tvb`: `at` moves, `stop` is where the packet ends, `have` where the
-- capture does.  What it gathers besides is for the summary line.

local function payload_words(values)
  local parts = {}
  for _, part in ipairs(CONTROL_PAYLOAD[values.ctl_type] or NACK_PAYLOAD[values.nack_code] or {}) do
    local number = math.floor(values.payload_word / 2 ^ part[2]) % 2 ^ part[3]
    parts[#parts + 1] = string.format("%s %.0f", part[1], number)
  end
  return parts[1] and table.concat(parts, " ")
end

local function put_field(c, tree, entry, values)
  local range = c.tvb(c.at + entry.octet, entry.octets)
  local value
  if entry.octets <= 4 then
    value = entry.signed and range:int() or range:uint()
    if entry.mask then
      value = band(rshift(value, entry.shift), entry.mask)
    end
    values[entry.key] = value
  elseif entry.octets <= 8 then
    values[entry.key] = range:uint64():tonumber() -- exact below 2^53
    c.ranges[entry.key] = range
  end
  if entry.flag then
    c.flags = c.flags or tree:add(plain.flags, c.tvb(c.at, 2))
    tree = c.flags
    if value == 1 and entry.mask == 1 and not entry.reserved then
      tree:append_text(" " .. entry.key:upper())
    end
  end
  local item = entry.bit and tree:add(entry.field, range, range:bitfield(entry.bit, entry.width))
    or tree:add(entry.field, range)
  if entry.unit and value then
    item:append_text(string.format(" (%.0f %s)", value * entry.scale, entry.unit))
  end
  if entry.key == "payload_word" then
    c.says = payload_words(values)
    if c.says then
      item:append_text(" (" .. c.says .. ")")
    end
  end
  if entry.reserved and value ~= 0 then
    item:add_proto_expert_info(experts.reserved)
  end
  if entry.shared then
    local again = value and tree:add(entry.shared, range, value) or tree:add(entry.shared, range)
    again:set_hidden()
  end
  if entry.joined then
    if c.at + entry.octet + entry.joined_octets <= c.have then
      tree:add(entry.joined, c.tvb(c.at + entry.octet, entry.joined_octets)):set_hidden()
    end
  end
end

-- Shows the next header and returns its values, the item, and whether all of it is there.
local function take(c, header)
  local left = math.min(c.stop, c.have) - c.at
  local shown = math.min(left, header.size)
  local top = header.field or plain[header.sublayer]
  local item = c.tree:add(top, c.tvb(c.at, shown))
  item:set_text(header.title)
  c.flags = nil
  local values, whole = {}, left >= header.size
  for _, entry in ipairs(header) do
    if whole or entry.octet + entry.octets <= left then
      put_field(c, item, entry, values)
    end
  end
  c.at = c.at + shown
  if not whole and not c.trimmed and c.stop <= c.have then
    item:add_proto_expert_info(experts[header.sublayer],
      string.format("%s needs %d octets, %d are left", header.title, header.size, left))
  end
  return values, item, whole
end

-- The same for a header of which nothing may be left.
local function take_if_any(c, header)
  if math.min(c.stop, c.have) > c.at then
    return take(c, header)
  end
  if not c.trimmed and c.stop <= c.have then
    c.tree:add_proto_expert_info(experts[header.sublayer],
      string.format("%s needs %d octets, 0 are left", header.title, header.size))
  end
  return {}, c.tree, false
end

local function rest(c, field)
  local left = math.min(c.stop, c.have) - c.at
  if left <= 0 then
    return
  end
  local item = c.tree:add(c.trimmed and plain.truncated or field, c.tvb(c.at, left))
  local whole = c.stop - c.at
  item:append_text(left < whole and string.format(" (%d of %d octets captured)", left, whole)
    or string.format(" (%d octets)", left))
  c.at = c.at + left
  return item
end

local function trailing(c, behind)
  local left = c.stop - c.at
  if left <= 0 then
    return
  end
  local unseen = c.stop > c.have and left == CRC_SIZE
  local item = rest(c, plain.payload) or c.tree
  if not c.trimmed and not unseen then
    item:add_proto_expert_info(experts.trailing,
      string.format("%d octets follow %s, which has no payload%s", left, behind,
        left == CRC_SIZE and " (a CRC that does not verify?)" or ""))
  end
end

local function payload(c, length)
  local left = c.stop - c.at
  c.carried = left
  if c.stop > c.have and c.check_crc and PAYLOAD_MTUS[left - CRC_SIZE] then
    c.carried = left - CRC_SIZE -- the capture was cut: most likely a CRC that nobody sees
  end
  local item = rest(c, plain.payload) or c.tree
  local unseen = c.stop > c.have and c.check_crc and CRC_SIZE or 0
  if length and not c.trimmed and left ~= length and left ~= length + unseen then
    item:add_proto_expert_info(experts.length,
      string.format("payload_length is %d, but %d octets follow%s", length, left,
        left == length + CRC_SIZE and " (a CRC that does not verify?)" or ""))
  end
end

-- SES -------------------------------------------------------------------------------------------
local function check_version(item, values, whole)
  if whole and values.version ~= 0 then
    item:add_proto_expert_info(experts.version)
  end
end

local function size_text(c, values)
  local total = values.request_length
  local here = values.payload_length or (values.som == 1 and values.eom == 1 and total) or c.carried
  if not total then
    return here and string.format("%d B", here) or nil
  end
  if not here or here == total or NO_PAYLOAD[values.opcode] then
    return string.format("%d B", total)
  end
  return string.format("%d of %d B", here, total)
end

local function request(c, next_hdr)
  local at, have = c.at, math.min(c.stop, c.have)
  local opcode = at < have and c.tvb(at, 1):uint() % 64 or 0
  local flags = at + 1 < have and c.tvb(at + 1, 1):uint() or 0
  local choice = REQUESTS[next_hdr]
  local variants = choice[opcode] or choice.default
  local header = band(flags, choice.flag) ~= 0 and variants[2] or variants[1]
  local values, item, whole = take_if_any(c, header)
  if not values.opcode then
    return
  end
  local name = names_of.opcode[values.opcode] or string.format("opcode 0x%02x", values.opcode)
  c.opcode = name
  item:append_text(", " .. name)
  check_version(item, values, whole)
  if whole then
    local extension = EXTENSIONS[opcode]
    if extension then
      local operation = c.at < have and c.tvb(c.at, 1):uint() or 0
      local found, under, all = take_if_any(c, extension[operation] or extension.default)
      if found.atomic_opcode then
        c.operation = names_of.atomic_opcode[found.atomic_opcode]
        under:append_text(", " .. (c.operation or "reserved operation"))
      end
      whole = all
    end
  end
  if whole then
    if NO_PAYLOAD[opcode] then
      trailing(c, "a " .. name .. " request")
    else
      payload(c, values.payload_length)
    end
  end
  c.message = values.message_id
  c.size = size_text(c, values)
  c.offset = values.message_offset
end

local function response(c, next_hdr)
  local values, item, whole = take_if_any(c, RESPONSES[next_hdr])
  local code = values.return_code
  if code then
    local name = names_of.return_code[code] or string.format("return code 0x%02x", code)
    c.code = name
    item:append_text(", " .. name)
    if not GOOD[code] then
      item:add_proto_expert_info(experts.failed, "The operation failed: " .. name)
    end
  end
  check_version(item, values, whole)
  if whole then
    if values.payload_length then
      c.data = "DATA"
      payload(c, values.payload_length)
      c.size = string.format("%d B", values.payload_length)
    else
      trailing(c, "a response")
    end
  end
  c.message = values.message_id or values.response_message_id
  c.offset = values.message_offset
end

-- PDS -------------------------------------------------------------------------------------------
local function put_derived(c, item, name, value)
  value = value % 4294967296
  item:add(derived[name], value):set_generated()
  return value
end

-- The PSNs whose bits are set, the lowest bit standing for `first`.
local function sacked(range, first)
  local runs, from = {}, nil
  local count = range:len() * 8
  for index = 0, count do
    local set = index < count and range:bitfield(count - 1 - index, 1) == 1
    if set and not from then
      from = index
    elseif from and not set then
      local low, high = (first + from) % 4294967296, (first + index - 1) % 4294967296
      runs[#runs + 1] = low == high and string.format("%.0f", low)
        or string.format("%.0f-%.0f", low, high)
      from = nil
    end
  end
  return #runs > 0 and table.concat(runs, ", ") or "none"
end

-- Requests by their source, its PDC and the PSN, for the links between frames.
local sent, replies, repeats = {}, {}, {}

local function link(c, item, key, role)
  if c.quoted then
    return
  end
  local number, pinfo = c.pinfo.number, c.pinfo
  if role == "request" then
    if not pinfo.visited then
      local entry = sent[key]
      if entry and c.retx then
        repeats[number] = entry.first
        entry.last, entry.time = number, pinfo.rel_ts
      else
        entry = { first = number, last = number, time = pinfo.rel_ts }
        sent[key] = entry
      end
      replies[number] = replies[number] or entry
    end
    local entry = replies[number]
    if repeats[number] then
      item:add(plain.first, repeats[number]):set_generated()
    end
    if entry and entry.reply then
      item:add(plain.reply, entry.reply):set_generated()
    end
  else
    if not pinfo.visited and sent[key] then
      local entry = sent[key]
      entry.reply = entry.reply or number
      replies[number] = { to = entry.last, delay = pinfo.rel_ts - entry.time }
    end
    local entry = replies[number]
    if entry and entry.to then
      item:add(plain.asked, entry.to):set_generated()
      local seconds = math.floor(entry.delay)
      local rest_ns = math.floor((entry.delay - seconds) * 1e9 + 0.5)
      item:add(plain.delay, NSTime(seconds, rest_ns)):set_generated()
    end
  end
end

local function describe_pds(c, kind, values, item)
  local pinfo, v = c.pinfo, values
  local source, destination = tostring(pinfo.src), tostring(pinfo.dst)
  c.retx = v.retx == 1
  if v.clear_psn_offset and v.psn then
    put_derived(c, item, "clear_psn", v.psn + v.clear_psn_offset)
  end
  if v.psn_offset then
    put_derived(c, item, "start_psn", v.psn - v.psn_offset)
  end
  local acked = v.ack_psn_offset and v.cack_psn
    and put_derived(c, item, "ack_psn", v.cack_psn + v.ack_psn_offset)
  if v.sack_psn_offset then
    local first = put_derived(c, item, "sack_base_psn", v.cack_psn + v.sack_psn_offset)
    if c.ranges.sack_bitmap then
      item:add(plain.sacked, c.ranges.sack_bitmap, sacked(c.ranges.sack_bitmap, first))
        :set_generated()
    end
  end
  if v.psn and v.spdcid and (kind ~= CP or OWN_PSN[v.ctl_type]) then
    link(c, item, source .. ">" .. destination .. "/" .. v.spdcid .. "/" .. v.psn, "request")
  elseif v.dpdcid and (acked or v.nack_psn) then
    link(c, item, destination .. ">" .. source .. "/" .. v.dpdcid .. "/" .. (acked or v.nack_psn),
      "reply")
  elseif v.pkt_id or v.nack_pkt_id then
    local asks = kind == RUDI_REQ
    local ends = asks and source .. ">" .. destination or destination .. ">" .. source
    link(c, item, ends .. "/rudi/" .. (v.pkt_id or v.nack_pkt_id), asks and "request" or "reply")
  end
  if c.retx and v.psn then
    item:add_proto_expert_info(experts.retx)
  end
  if v.nack_code then
    c.code = names_of.nack_code[v.nack_code] or string.format("code 0x%02x", v.nack_code)
    item:add_proto_expert_info(experts.nack, "The packet was refused: " .. c.code)
  end
  c.control = v.ctl_type and (names_of.ctl_type[v.ctl_type] or "type " .. v.ctl_type)
  c.marks = {}
  for _, flag in ipairs({ "syn", "ar", "retx", "m", "p", "isrod" }) do
    if v[flag] == 1 then
      c.marks[#c.marks + 1] = flag:upper()
    end
  end
  if v.req and v.req ~= 0 then
    c.marks[#c.marks + 1] = "REQ=" .. (names_of.req[v.req] or v.req)
  end
  local in_use = kind ~= CP or OWN_PSN[v.ctl_type] -- the others leave their PSN field alone
  c.psn = in_use and v.psn or acked or v.nack_psn
  c.cack = v.cack_psn
  c.packet = v.pkt_id or v.nack_pkt_id
  if v.spdcid then
    c.pdcs = string.format("PDC %d->%s", v.spdcid, v.dpdcid or v.syn == 1 and "new" or "?")
  end
end

local function pds(c, kind)
  local choice = PACKETS[kind]
  c.name = names_of.type[kind] or ("reserved type " .. kind)
  if not choice then
    local item = rest(c, plain.payload) or c.tree
    item:add_proto_expert_info(experts.type, "Packet type " .. kind .. " is reserved")
    return
  end
  local have = math.min(c.stop, c.have)
  local flags = c.at + 1 < have and c.tvb(c.at + 1, 1):uint() or 0
  local selector = choice.octet and c.at + choice.octet < have
      and rshift(c.tvb(c.at + choice.octet, 1):uint(), choice.shift) or 0
  local variants = choice[selector] or choice.default
  local header = band(flags, choice.flag) ~= 0 and variants[2] or variants[1]
  local values, item, whole = take(c, header)
  item:set_text("PDS: " .. c.name)
  describe_pds(c, kind, values, item)
  if not whole then
    return
  end
  if ACKS[kind] and prefs.epsn and band(flags, 0x40) ~= 0 and c.at + 4 <= have then
    item:add(plain.epsn_flag, c.tvb(c.at - header.size + 1, 1))
    item:add(plain.epsn, c.tvb(c.at, 4))
    c.at = c.at + 4
  end
  if choice.state then
    local _, _, all = take_if_any(c, choice.state)
    if not all then
      return
    end
  end
  if kind == CP then
    if values.ctl_type == NEGOTIATION then
      local octets = c.tvb(c.at - 4, math.max(4, math.min(c.stop, c.have) - c.at + 4))
      c.says = "payload " .. tostring(octets:bytes()):lower()
      rest(c, plain.negotiation)
    end
    trailing(c, "a control packet")
    return
  end
  local next_hdr = values.next_hdr
  if not choice.sensible[next_hdr] then
    item:add_proto_expert_info(experts.next_hdr)
  end
  if choice.ends then
    trailing(c, "a NACK")
  elseif REQUESTS[next_hdr] then
    request(c, next_hdr)
  elseif RESPONSES[next_hdr] then
    response(c, next_hdr)
  elseif next_hdr == 0 then
    payload(c)
  else
    rest(c, plain.payload)
  end
end
"""
